package agent_test

import (
	"errors"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/kerneltest"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

func clusterDNS() *model.Service {
	svc := balanced(compiletest.Service("dns", "10.100.0.10", "10.244.0.53"), "203.0.113.9")
	svc.ID.Namespace = "kube-system"
	return svc
}

func TestBootstrapServicesFirst(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.services = compiletest.Many(50, 2)
		maps.Copy(w.services, all(clusterDNS(), balanced(web(), "203.0.113.9")))
		w.services[clusterDNS().ID].Created = compiletest.Epoch.AddDate(1, 0, 0)
		w.start()
		w.is()
		reports := w.takeReports()
		if len(reports) != 1 || reports[0].Err != nil || !reports[0].Full || reports[0].Services != 52 {
			t.Fatalf("reports: %+v", reports)
		}
		if reports[0].Drift > 0 {
			t.Errorf("objects missing on a new node count as drift: %v", reports[0].Drifted)
		}
		ops := done(reports...)
		reached := slices.IndexFunc(ops, func(op string) bool { return strings.Contains(op, "ip addr add 10.100.0.10/") })
		if reached < 0 {
			t.Fatalf("never bound: %v", ops)
		}
		for _, op := range ops[:reached] {
			if strings.Contains(op, "ipvsadm") && !strings.Contains(op, "10.100.0.10:80") || strings.Contains(op, "203.0.113.9") {
				t.Errorf("written before the DNS Service is reachable: %s", op)
			}
		}
		for _, op := range ops[reached:] {
			if strings.Contains(op, "10.100.0.10:80") && strings.Contains(op, "ipvsadm") || strings.Contains(op, "iptables") {
				t.Errorf("written twice: %s", op)
			}
		}
	})
}

func TestNoBootstrapWithServersToAdopt(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.damage(func(f *kerneltest.Fake) error { return f.AddServer(serverAt(webKey), to("10.244.0.1:8080", 1)) })
		w.put(web("10.244.0.1"), clusterDNS())
		w.start()
		w.converged()
		if r := w.lastReport(); len(r.Foreign) > 0 {
			t.Errorf("foreign: %v", r.Foreign)
		}
	})
}

func TestNoBootstrapAfterAnEarlierAgent(t *testing.T) {
	for name, damage := range map[string]func(*kerneltest.Fake) error{
		"a restart":                    nil,
		"a restart without the device": func(f *kerneltest.Fake) error { return f.DelDevice() },
	} {
		t.Run(name, func(t *testing.T) {
			calmBubble(t, func(w *world) {
				w.put(web("10.244.0.1", "10.244.0.2"), compiletest.Service("other", "10.96.0.2", "10.244.0.1"), clusterDNS())
				w.start()
				w.is()
				w.stop()
				if damage != nil {
					w.damage(damage)
				}
				w.fake.OnOp(func(op kernel.Op, err error) {
					if op.Verb == kernel.Delete {
						w.Errorf("%s", op)
					}
					w.checkStep(op, err)
				})
				w.start()
				w.is()
			})
		})
	}
}

func TestNoBootstrapAfterAFailure(t *testing.T) {
	leftover := func(f *kerneltest.Fake) error {
		entry := entry(tcp("10.96.0.9:80"))
		for _, set := range compile.Base(compiletest.Config()).Sets {
			if set.Name == entry.Set {
				return errors.Join(f.CreateSet(set.Set), f.AddMember(entry))
			}
		}
		return nil
	}
	for name, damage := range map[string]func(*kerneltest.Fake) error{
		"no leftovers":     func(*kerneltest.Fake) error { return nil },
		"a leftover entry": leftover,
	} {
		t.Run(name, func(t *testing.T) {
			calmBubble(t, func(w *world) {
				w.damage(damage)
				w.fake.FailNextRead(syscall.EBUSY)
				w.fake.FailNextRead(syscall.EBUSY)
				w.put(web("10.244.0.1"), compiletest.Service("other", "10.96.0.2", "10.244.0.1"), clusterDNS())
				w.start()
				w.put(web("10.244.0.1", "10.244.0.2"), clusterDNS())
				if r := w.lastReport(); r.Err != nil || !r.Full {
					t.Errorf("full: %t, error: %v", r.Full, r.Err)
				}
				w.is()
			})
		})
	}
}
