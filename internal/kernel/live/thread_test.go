package live

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// Audits and quick checks give way to changes: the kernel prefers every other thread of the agent.
func TestBackgroundThreadsGiveWay(t *testing.T) {
	for name, c := range map[string]struct {
		start func() (thread, error)
		nice  int
	}{"ordinary": {newThread, 0}, "background": {newBackgroundThread, 10}} {
		worker, err := c.start()
		if err != nil {
			t.Fatal(err)
		}
		defer close(worker)
		worker.do(func() {
			const none = 20 // getpriority(2) returns 20 - nice
			if priority, err := unix.Getpriority(unix.PRIO_PROCESS, unix.Gettid()); err != nil || none-priority != c.nice {
				t.Errorf("%s: nice value %d, want %d (%v)", name, none-priority, c.nice, err)
			}
		})
	}
}

// If a program that removes old rules hangs and cannot be killed, the agent does not wait for it, even while stopping.
func TestOldRulesHang(t *testing.T) {
	for name, call := range map[string]func(context.Context, *Kernel) error{
		"search":  func(ctx context.Context, k *Kernel) error { _, err := k.FindOldRules(ctx); return err },
		"removal": func(ctx context.Context, k *Kernel) error { return k.old.Apply(ctx, make([]kernel.Op, 1))[0] },
		"job": func(ctx context.Context, k *Kernel) error {
			ctx, cancel := context.WithTimeout(ctx, oldLimit)
			defer cancel()
			return k.old.thread.doFor(ctx, func() { time.Sleep(24 * time.Hour) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				worker, err := newThread()
				if err != nil {
					t.Fatal(err)
				}
				defer close(worker)
				k := &Kernel{old: &old{thread: worker}}
				if name != "job" {
					worker <- func() { time.Sleep(24 * time.Hour) } // an earlier program
				}
				began := time.Now()
				ctx, stop := context.WithCancel(t.Context())
				time.AfterFunc(time.Minute, stop)
				if err := call(ctx, k); !errors.Is(err, context.Canceled) || time.Since(began) > time.Minute+endGrace {
					t.Errorf("stopped: after %s: %v", time.Since(began), err)
				}
				began = time.Now()
				if err := call(t.Context(), k); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) > oldLimit+endGrace {
					t.Errorf("running: after %s: %v", time.Since(began), err)
				}
				time.Sleep(24 * time.Hour) // let the hung program end
			})
		})
	}
}
