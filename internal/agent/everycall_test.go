package agent_test

import (
	"errors"
	"fmt"
	"maps"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// Operations fail with each error, with and without taking effect. I7 holds after every step, and the kernel reaches
// the wanted state.
func TestEveryCallFails(t *testing.T) {
	errnos := []syscall.Errno{syscall.EINTR, syscall.ENOBUFS, syscall.ENOMEM, syscall.EBUSY, syscall.EEXIST, syscall.ENOENT, syscall.ETIMEDOUT}
	every := max(1, 60/int(*seeds)) // with -seeds=60, every operation
	injections := 0
	for i, errno := range errnos {
		for _, effect := range []bool{false, true} {
			for n := 1 + i%every; failAt(t, n, errno, effect); n += every {
				injections++
			}
		}
	}
	t.Attr("figure", fmt.Sprintf("%d injections", injections))
	if injections < 40 {
		t.Errorf("only %d injections", injections)
	}
}

func failAt(t *testing.T, n int, errno syscall.Errno, effect bool) bool {
	t.Helper()
	var failed atomic.Bool
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0)
		w.calm()
		w.damage(foreign(tcp("10.96.0.9:80")))
		w.fake.FailAt(n, errno, effect)
		w.fake.OnOp(func(op kernel.Op, err error) {
			if errors.Is(err, errno) {
				failed.Store(true)
			}
			w.checkStep(op, err)
		})
		w.services = maps.Clone(crashSteps[0])
		w.start()
		defer w.stop()
		for _, step := range crashSteps[1:] {
			w.sleep(drainInterval + time.Second)
			w.change(compiletest.Between(w.services, step))
		}
		w.audit()
		w.sleep(drainTimeout)
		w.is(foreign(tcp("10.96.0.9:80")))
		if t.Failed() {
			t.Fatalf("operation %d failed with %v, with effect: %t", n, errno, effect)
		}
	})
	return failed.Load()
}
