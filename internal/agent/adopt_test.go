package agent_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

type refusingRecords struct {
	agent.Kernel
	failures int
	calls    []string
}

func (k *refusingRecords) AdoptRecords(ctx context.Context) error {
	if k.calls = append(k.calls, "adopt"); len(k.calls) <= k.failures {
		return errors.New("no memory")
	}
	return k.Kernel.AdoptRecords(ctx)
}

func (k *refusingRecords) Read(ctx context.Context) (*kernel.State, error) {
	k.calls = append(k.calls, "read")
	return k.Kernel.Read(ctx)
}

// I4, I10: the first sync adopts the owner records of an earlier run before it reads the kernel. It writes nothing
// before the adoption succeeds.
func TestFirstSyncAdoptsRecords(t *testing.T) {
	calmBubble(t, func(w *world) {
		k := &refusingRecords{Kernel: w.fake, failures: 2}
		w.kernel = k
		w.put(web())
		w.startUnsynced()
		if len(k.calls) > 0 {
			w.Fatalf("calls before the source has synced: %v", k.calls)
		}
		w.source.sync()
		w.sleep(time.Minute)
		w.is()
		if got := k.calls[:4]; got[0] != "adopt" || got[1] != "adopt" || got[2] != "adopt" || got[3] != "read" {
			w.Errorf("calls: %v", k.calls)
		}
		w.audit()
		for _, call := range k.calls[4:] {
			if call == "adopt" {
				w.Errorf("adopted again: %v", k.calls)
			}
		}
	})
}
