package agent_test

import (
	"context"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// kube-proxy does not know routes, so a cleanup that keeps the Services changes them to addresses; a full cleanup removes them.
func TestCleanupOfRoutes(t *testing.T) {
	for name, keep := range map[string]bool{"keep Services": true, "remove everything": false} {
		t.Run(name, func(t *testing.T) {
			runWith(t, "", "routes", func(w *world) {
				before := w.fake.State()
				c, err := agent.NewCleanup(context.Background(), w.config.Compile, w.fake)
				if err != nil {
					t.Fatal(err)
				}
				if keep {
					c.KeepServices()
				}
				err = c.Run(context.Background(), func(op kernel.Op, err error) {
					if err != nil {
						t.Errorf("%s: %v", op, err)
					}
				})
				if err != nil {
					t.Error(err)
				}
				after := w.fake.State()
				if keep && len(after.Addresses) != len(before.Addresses) || !keep && len(after.Addresses) > 0 || after.Device != keep {
					t.Errorf("before: %v; after: device %t, %v", before.Addresses, after.Device, after.Addresses)
				}
				for addr, binding := range after.Addresses {
					if binding != kernel.OnDevice {
						t.Errorf("%s has binding %d", addr, binding)
					}
				}
			})
		})
	}
}
