package agent_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/kerneltest"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

var (
	input     = kernel.ChainID{Table: "filter", Chain: "INPUT"}
	services4 = kernel.ChainID{Table: "nat", Chain: "KUBE-SERVICES"}
)

var drifts = map[string]func(*kerneltest.Fake) error{
	"ipvsadm -C":        func(f *kerneltest.Fake) error { return f.ClearServers() },
	"ipvsadm -D":        func(f *kerneltest.Fake) error { return f.DelServer(webKey) },
	"another scheduler": replaceServer(func(s *kernel.Server) { s.Scheduler = "mh" }),
	"persistence":       replaceServer(func(s *kernel.Server) { s.Flags, s.Timeout = kernel.FlagPersistent, 9 }),
	"ipvsadm -d":        func(f *kerneltest.Fake) error { return f.DelDestination(dest(1)) },
	"another weight": func(f *kerneltest.Fake) error {
		return errors.Join(f.DelDestination(dest(1)), f.AddDestination(dest(7)))
	},
	"weight 0": func(f *kerneltest.Fake) error {
		return errors.Join(f.DelDestination(dest(1)), f.AddDestination(dest(0)))
	},
	"a foreign destination": func(f *kerneltest.Fake) error {
		return f.AddDestination(kernel.ServerDestination{Server: webKey, Destination: to("192.168.1.1:9", 1)})
	},
	"direct routing":       func(f *kerneltest.Fake) error { return f.SetForwarding(dest(1), kernel.ForwardRoute) },
	"served ports flushed": func(f *kerneltest.Fake) error { return f.FlushSet("KIPVS-4-CLUSTER-IP") },
	"VIPs flushed":         func(f *kerneltest.Fake) error { return f.FlushSet("KIPVS-4-VIP") },
	"ledger flushed":       func(f *kerneltest.Fake) error { return f.FlushSet("KIPVS-4-LEDGER") },
	"hairpins flushed":     func(f *kerneltest.Fake) error { return f.FlushSet("KIPVS-4-HAIRPIN") },
	"a foreign member": func(f *kerneltest.Fake) error {
		return f.AddMember(kernel.Member{Set: "KIPVS-4-VIP", Element: kernel.Element{Addr: tcp("9.9.9.9:1").Addr.Addr()}})
	},
	"ledger destroyed": func(f *kerneltest.Fake) error { return f.DestroySet("KIPVS-4-LEDGER") },
	"set destroyed": func(f *kerneltest.Fake) error {
		return errors.Join(f.FlushChain(inet.IPv4, services4), flushAll(f), f.DestroySet("KIPVS-4-VIP"))
	},
	"set too small": func(f *kerneltest.Fake) error {
		small := kernel.Set{Name: "KIPVS-4-LEDGER", Type: kernel.HashIPPort, Family: inet.IPv4, MaxElem: 5}
		return errors.Join(f.DestroySet(small.Name), f.CreateSet(small), f.AddMember(entry(webKey)))
	},
	"chain flushed":  func(f *kerneltest.Fake) error { return f.FlushChain(inet.IPv4, services4) },
	"rule added":     func(f *kerneltest.Fake) error { return f.AppendRule(inet.IPv4, services4, "-j", "DROP") },
	"jump removed":   func(f *kerneltest.Fake) error { return f.FlushChain(inet.IPv6, input) },
	"device deleted": func(f *kerneltest.Fake) error { return f.DelDevice() },
	"address deleted": func(f *kerneltest.Fake) error {
		return f.DelAddress(kernel.BoundAddress{Addr: webKey.Addr.Addr()})
	},
	"address became a route": func(f *kerneltest.Fake) error {
		return errors.Join(f.AddAddress(kernel.BoundAddress{Addr: webKey.Addr.Addr(), Binding: kernel.Routed}), f.DelAddress(kernel.BoundAddress{Addr: webKey.Addr.Addr()}))
	},
	"route beside an address": func(f *kerneltest.Fake) error {
		return f.AddAddress(kernel.BoundAddress{Addr: webKey.Addr.Addr(), Binding: kernel.Routed})
	},
	"sysctl": func(f *kerneltest.Fake) error {
		return f.SetSysctl(kernel.SysctlSetting{Name: "net/ipv4/vs/conntrack", Value: "0"})
	},
}

func dest(weight uint32) kernel.ServerDestination {
	return kernel.ServerDestination{Server: webKey, Destination: to("10.244.0.1:8080", weight)}
}

func replaceServer(change func(*kernel.Server)) func(*kerneltest.Fake) error {
	return func(f *kerneltest.Fake) error {
		s := serverAt(webKey)
		change(&s)
		return errors.Join(f.DelServer(webKey), f.AddServer(s))
	}
}

func flushAll(f *kerneltest.Fake) error {
	for _, rules := range compile.Base(compiletest.Config()).Rulesets {
		for _, chain := range rules.Chains {
			if err := f.FlushChain(rules.Family, chain.ChainID); err != nil {
				return err
			}
		}
	}
	return nil
}

func TestAuditRepairs(t *testing.T) {
	for name, drift := range drifts {
		t.Run(name, func(t *testing.T) {
			calmBubble(t, func(w *world) {
				w.put(web("10.244.0.1", "10.244.0.2"), compiletest.Service("other", "10.96.0.2", "10.244.0.1"), compiletest.Service("empty", "10.96.0.3"))
				w.start()
				w.is()
				w.takeReports()
				w.logs.TakeAll()
				w.damage(drift)
				w.sleep(auditInterval)
				r := w.takeReports()
				w.sleep(drainInterval) // a foreign destination may have received a connection since the audit's read
				w.is()
				if r[0].Drift == 0 || r[0].Err != nil {
					w.Errorf("report: %+v", r[0])
				}
				if len(warnings(w, "kernel state drifted")) != 1 {
					w.Errorf("log: %v", w.logs.All())
				}
				w.sleep(drainInterval)
				w.logs.TakeAll()
				w.fake.TakeCounts()
				w.sleep(auditInterval)
				if c := w.fake.TakeCounts(); c.Writes() > 0 || w.logs.Len() > 0 {
					w.Errorf("the next audit wrote %+v and logged %v", c, w.logs.All())
				}
			})
		})
	}
}

func TestAuditRepairsDespiteFailures(t *testing.T) {
	for name, drift := range drifts {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(w *world) {
				w.put(web("10.244.0.1", "10.244.0.2"), compiletest.Service("other", "10.96.0.2", "10.244.0.1"), compiletest.Service("empty", "10.96.0.3"))
				w.start()
				faults := w.faults
				w.converged()
				w.faults = faults
				w.mayUnclaim = true
				w.damage(drift)
				w.put(web("10.244.0.2", "10.244.0.3"))
				w.sleep(3 * auditInterval)
				w.converged()
			})
		})
	}
}

func TestQuietAudits(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.put(web(), compiletest.Service("six", "fd00::1", "fd01::1"))
		w.start()
		w.logs.TakeAll()
		w.takeReports()
		w.fake.TakeCounts()
		w.sleep(10*auditInterval + time.Second)
		c := w.fake.TakeCounts()
		if c.Reads != 10 || c.Writes() > 0 || c.Lookups > 0 {
			w.Errorf("counts %+v", c)
		}
		if w.logs.Len() > 0 {
			w.Errorf("log: %v", w.logs.All())
		}
		for _, r := range w.takeReports() {
			if !r.Full || r.Drift > 0 || r.Err != nil || len(r.Results) > 0 {
				w.Errorf("report: %+v", r)
			}
		}
	})
}

// putQuietly changes a Service but does not notify the agent. Only a sync that starts for another reason sees the
// change.
func (w *world) putQuietly(changed *model.Service) {
	w.source.mu.Lock()
	defer w.source.mu.Unlock()
	w.source.pending[changed.ID], w.services[changed.ID] = changed, changed
}

func TestChangeDuringAuditIsNotDrift(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.put(web())
		w.start()
		w.takeReports()
		w.putQuietly(web("10.244.0.2"))
		w.sleep(auditInterval)
		if r := w.lastReport(); !r.Full || r.Drift > 0 || len(r.Compiled) != 1 {
			w.Errorf("report: %+v", r)
		}
		w.sleep(drainInterval)
		w.is()
	})
}

func TestLogs(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.put(web())
		w.start()
		w.logs.TakeAll()
		w.put(web("10.244.0.1", "10.244.1.2"))
		w.put(web("10.244.0.1", "10.244.1.2")) // no difference
		w.remove("web")
		var lines []string
		for _, e := range w.logs.All() {
			lines = append(lines, e.Level.String()+" "+e.Message)
		}
		want := []string{
			"info ipset add KIPVS-4-HAIRPIN 10.244.1.2,tcp:8080,10.244.1.2",
			"info ipvsadm -a -t 10.96.0.1:80 -r 10.244.1.2:8080 -m -w 1",
			"info ip addr del 10.96.0.1/32 dev kube-ipvs0",
			"info ipset del KIPVS-4-CLUSTER-IP 10.96.0.1,tcp:80",
			"info ipvsadm -D -t 10.96.0.1:80",
			"info ipset del KIPVS-4-VIP 10.96.0.1",
			"info ipset del KIPVS-4-HAIRPIN 10.244.0.1,tcp:8080,10.244.0.1",
			"info ipset del KIPVS-4-HAIRPIN 10.244.1.2,tcp:8080,10.244.1.2",
			"info ipset del KIPVS-4-LEDGER 10.96.0.1,tcp:80",
		}
		if strings.Join(lines, "\n") != strings.Join(want, "\n") {
			w.Errorf("log:\n%s\nwant:\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
		}
	})
}

func TestProblemsAreLoggedOnce(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.put(web(), younger(compiletest.Service("late", "10.96.0.1", "10.244.0.9")))
		w.start()
		logged := func(n int) {
			w.Helper()
			if got := len(warnings(w, "default/late")); got != n {
				w.Errorf("logged %d times, want %d: %v", got, n, w.logs.All())
			}
		}
		logged(1)
		w.put(web("10.244.0.1", "10.244.0.2"))
		w.put(web("10.244.0.2"))
		logged(1)
		w.remove("web")
		w.put(web())
		logged(2)
	})
}

// A known limit: lists of destinations do not show connection limits. Therefore the agent does not notice a limit
// that another program sets.
func TestForeignLimitIsNotSeen(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.unwatched = true
		w.put(web("10.244.0.1"))
		w.start()
		w.audit()
		limited := dest(1)
		limited.Upper = 1
		w.damage(func(f *kerneltest.Fake) error {
			return errors.Join(f.Apply(t.Context(), []kernel.Op{{Verb: kernel.Update, Object: limited}})...)
		})
		w.audit()
		w.audit()
		if d, exists := w.fake.State().Servers[webKey].Destination(limited.Addr); !exists || d.Upper != 1 {
			t.Errorf("the destination is %v, but docs/known-limits.md documents that the limit stays", d)
		}
	})
}
