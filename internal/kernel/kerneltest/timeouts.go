package kerneltest

import (
	"fmt"
	"math"
	"syscall"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

var freshTimeouts = kernel.Timeouts{TCP: 900 * time.Second, TCPFin: 120 * time.Second, UDP: 300 * time.Second}

func (f *Fake) applyTimeouts(verb kernel.Verb, want kernel.Timeouts) error {
	if verb != kernel.Ensure {
		return errVerb("timeouts")
	}
	// The kernel counts in ticks, 250 per second in most builds.
	const longest = math.MaxInt32 / 250 * time.Second
	for _, t := range []time.Duration{want.TCP, want.TCPFin, want.UDP} {
		if t < 0 || t > longest || t%time.Second != 0 {
			return fmt.Errorf("timeout of %s: %w", t, syscall.EINVAL)
		}
	}
	f.timeouts = f.timeouts.With(want)
	return nil
}

// SetTimeouts does what ipvsadm --set does.
func (f *Fake) SetTimeouts(t kernel.Timeouts) error { return f.admin(kernel.Ensure, t) }

func (f *Fake) dumpTimeouts() []string {
	if f.timeouts == freshTimeouts {
		return nil
	}
	return []string{kernel.Op{Verb: kernel.Ensure, Object: f.timeouts}.String()}
}

func (f *Fake) parseTimeouts(w *words) error {
	var seconds [3]time.Duration
	for i := range seconds {
		n, err := w.number()
		if err != nil {
			return err
		}
		seconds[i] = time.Duration(n) * time.Second
	}
	return f.SetTimeouts(kernel.Timeouts{TCP: seconds[0], TCPFin: seconds[1], UDP: seconds[2]})
}
