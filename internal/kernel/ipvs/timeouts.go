package ipvs

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// maxTimeout is valid on every kernel. Kernels count timeouts in ticks, at most 1000 per second.
const maxTimeout = math.MaxInt32 / 1000 * time.Second

// Timeouts reads the timeouts of IPVS connections.
func (b *Backend) Timeouts(ctx context.Context) (kernel.Timeouts, error) {
	answers, errs := b.get(ctx, b.request(cmdGetConfig, nil))
	if errs[0] != nil {
		return kernel.Timeouts{}, fmt.Errorf("read IPVS timeouts: %w", errs[0])
	}
	if len(answers[0]) != 1 {
		return kernel.Timeouts{}, fmt.Errorf("read IPVS timeouts: %d answers instead of one", len(answers[0]))
	}
	t, err := decodeTimeouts(answers[0][0].Payload)
	if err != nil {
		return kernel.Timeouts{}, fmt.Errorf("read IPVS timeouts: %w", err)
	}
	return t, nil
}

func decodeTimeouts(payload []byte) (t kernel.Timeouts, err error) {
	attrs, err := body(payload)
	if err != nil {
		return t, err
	}
	err = nlbatch.EachAttr(attrs, func(typ uint16, v []byte) (err error) {
		switch typ {
		case attrTimeoutTCP:
			t.TCP, err = decodeSeconds(v)
		case attrTimeoutTCPFin:
			t.TCPFin, err = decodeSeconds(v)
		case attrTimeoutUDP:
			t.UDP, err = decodeSeconds(v)
		}
		return err
	})
	return t, err
}

func decodeSeconds(v []byte) (time.Duration, error) {
	seconds, err := nlbatch.Uint32(v)
	return time.Duration(seconds) * time.Second, err
}

// encodeTimeouts encodes all timeouts, as the kernel requires; zero means unchanged.
func encodeTimeouts(t kernel.Timeouts) ([]byte, error) {
	var attrs []byte
	for _, kind := range []struct {
		name  string
		attr  uint16
		value time.Duration
	}{
		{"TCP", attrTimeoutTCP, t.TCP},
		{"TCP FIN", attrTimeoutTCPFin, t.TCPFin},
		{"UDP", attrTimeoutUDP, t.UDP},
	} {
		if kind.value < 0 || kind.value%time.Second != 0 || kind.value/time.Second > math.MaxUint32 {
			return nil, fmt.Errorf("the %s timeout %s is not a whole number of seconds up to %s", kind.name, kind.value, maxTimeout)
		}
		attrs = nlbatch.AppendUint32(attrs, kind.attr, uint32(kind.value/time.Second))
	}
	return attrs, nil
}

func timeoutsError(err error) error {
	if errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("the kernel accepts timeouts up to %s: %w", maxTimeout, err)
	}
	return err
}
