package agent_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/kerneltest"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

var webKey = tcp("10.96.0.1:80")

func web(endpoints ...string) *model.Service {
	if len(endpoints) == 0 {
		endpoints = []string{"10.244.0.1"}
	}
	return compiletest.Service("web", "10.96.0.1", endpoints...)
}

func (w *world) untouched() {
	w.Helper()
	state := w.fake.State()
	server, exists := state.Servers[webKey]
	if !exists || server.Server != serverAt(webKey) || len(server.Destinations) != 1 ||
		server.Destinations[0].Destination != to("192.168.1.1:9", 3) {
		w.Errorf("the foreign server is %v", server)
	}
	if state.HasMember(entry(webKey)) {
		w.Error("the foreign virtual server is in our ledger")
	}
	if _, bound := state.Addresses[webKey.Addr.Addr()]; bound {
		w.Error("the foreign virtual server's address is bound")
	}
	if r := w.lastReport(); r.Foreign[webKey].String() != "default/web:http" {
		w.Errorf("the report lists foreign virtual servers %v", r.Foreign)
	}
}

func TestForeignServerBeforeStart(t *testing.T) {
	bubble(t, func(w *world) {
		w.damage(foreign(webKey))
		w.put(web())
		w.start()
		w.converged(foreign(webKey))
		w.untouched()
		for range 3 { // new endpoints, audits and restarts do not change the virtual server's owner
			w.put(web("10.244.0.1", "10.244.0.2"))
			w.untouched()
			w.restart()
			w.untouched()
			w.put(web())
		}
	})
}

func TestForeignServerAppearsBetweenSyncs(t *testing.T) {
	bubble(t, func(w *world) {
		w.start()
		w.audit()
		w.damage(foreign(webKey))
		w.put(web())
		w.converged(foreign(webKey))
		w.untouched()
	})
}

func TestForeignServerKnownBeforeService(t *testing.T) {
	bubble(t, func(w *world) {
		w.damage(foreign(webKey))
		w.start()
		w.audit()
		w.put(web())
		w.remove("web")
		w.put(web())
		w.converged(foreign(webKey))
		w.untouched()
		w.remove("web")
		w.converged(foreign(webKey))
	})
}

func TestForeignServerAppearsBetweenLookupAndWrite(t *testing.T) {
	for _, undo := range []error{nil, syscall.EBUSY} {
		for _, when := range []string{"audit", "change"} {
			calmBubble(t, func(w *world) {
				w.mayUnclaim = true
				if when == "change" {
					w.start()
				}
				w.fake.OnOp(intrude(w, undo))
				w.put(web())
				if when == "audit" {
					w.start()
				}
				w.converged(foreign(webKey))
				w.untouched()
				w.put(web("10.244.0.1", "10.244.0.2"))
				w.untouched()
			})
		}
	}
}

func intrude(w *world, undo error) func(kernel.Op, error) {
	made := false
	return func(op kernel.Op, err error) {
		switch {
		case !made && op.Object == kernel.Object(entry(webKey)):
			made = true
			if err := foreign(webKey)(w.fake); err != nil {
				w.Error(err)
			}
		case errors.Is(err, kernel.ErrExists) && undo != nil:
			w.fake.FailNext(kernel.KindMember, undo)
		}
	}
}

// Another program replaces our virtual server while the agent is repairing it. The owner record is older, so the
// virtual server stays ours.
func TestServerIsReplacedDuringRepair(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.put(web("10.244.0.1"))
		w.start()
		w.damage(func(f *kerneltest.Fake) error {
			return errors.Join(f.DelServer(webKey), f.FlushSet("KIPVS-4-HAIRPIN"))
		})
		refused := false
		w.fake.OnOp(func(op kernel.Op, err error) {
			switch m, _ := op.Object.(kernel.Member); {
			case m.Set == "KIPVS-4-HAIRPIN" && op.Verb == kernel.Create:
				_ = foreign(webKey)(w.fake) // fails in later repairs, because the virtual server exists by then
			case errors.Is(err, kernel.ErrExists):
				refused = true
			}
		})
		w.converged()
		if !refused {
			w.Error("the agent saw the foreign virtual server before it created its own")
		}
	})
}

func TestAddressIsReleasedWithoutItsSet(t *testing.T) {
	cases := map[string]func(w *world){
		"the set cannot be created again": func(w *world) {
			w.damage(drifts["set destroyed"])
			w.fake.FailNext(kernel.KindSet, syscall.EBUSY)
			w.sleep(auditInterval)
			w.remove("web")
		},
		"the address could not be released before": func(w *world) {
			w.damage(drifts["ipvsadm -D"])
			w.fake.FailNext(kernel.KindServer, syscall.EBUSY) // so the agent knows that the virtual server does not exist
			w.sleep(auditInterval)
			w.fake.FailNext(kernel.KindAddress, syscall.EBUSY)
			w.fake.OnOp(func(op kernel.Op, err error) {
				if _, address := op.Object.(kernel.BoundAddress); address && err != nil {
					_ = w.fake.FlushSet("KIPVS-4-VIP")
				}
			})
			w.remove("web")
		},
	}
	for name, damage := range cases {
		t.Run(name, func(t *testing.T) {
			calmBubble(t, func(w *world) {
				w.unwatched = true
				w.put(web("10.244.0.1"), compiletest.Service("other", "10.96.0.2", "10.244.0.1"))
				w.start()
				w.fake.OnOp(nil) // the damage alone breaks I7
				damage(w)
				w.converged()
			})
		})
	}
}

func TestForeignServerIsDeleted(t *testing.T) {
	bubble(t, func(w *world) {
		w.damage(foreign(webKey))
		w.put(web())
		w.start()
		w.audit()
		w.damage(func(f *kerneltest.Fake) error { return f.DelServer(webKey) })
		w.converged()
		if r := w.lastReport(); len(r.Foreign) > 0 {
			w.Errorf("foreign virtual servers are still reported: %v", r.Foreign)
		}
		w.remove("web")
		w.converged()
	})
}

func TestLedgerFlushedWhileRunning(t *testing.T) {
	bubble(t, func(w *world) {
		w.put(web(), compiletest.Service("empty", "10.96.0.2"), compiletest.Service("going", "10.96.0.3", "10.244.0.3"))
		w.start()
		w.audit()
		w.damage(func(f *kerneltest.Fake) error { return f.FlushSet("KIPVS-4-LEDGER") })
		w.allowed = nil
		w.mayUnclaim = true
		w.fake.OnOp(nil)
		w.remove("going")
		w.put(web("10.244.0.2"))
		w.converged()
		if r := w.lastReport(); len(r.Foreign)+len(r.Leftovers.Servers)+len(r.Leftovers.Addresses) > 0 {
			w.Errorf("report: %+v", r)
		}
	})
}

// If the ledger is lost, or kube-proxy ran here before, the agent adopts every wanted virtual server on our device
// without recreating it. Connections survive.
func TestAdoptsWhenLedgerIsLost(t *testing.T) {
	bubble(t, func(w *world) {
		w.damage(kubeProxy)
		w.put(web("10.244.0.1", "10.244.0.2"), compiletest.Service("empty", "10.96.0.2"))
		w.fake.OnOp(func(op kernel.Op, err error) {
			if _, ok := op.Object.(kernel.Server); ok && op.Verb != kernel.Update && !strings.Contains(op.String(), ":99") {
				w.Errorf("%s would break connections", op)
			}
			w.checkStep(op, err)
		})
		for _, key := range []kernel.ServerKey{webKey, tcp("10.96.0.2:80")} {
			w.allowed = append(w.allowed, fmt.Sprintf("address %s is bound without a virtual server", key.Addr.Addr()))
		}
		w.start()
		w.converged(leftover)
		r := w.lastReport()
		if !slices.Equal(r.Leftovers.Servers, []kernel.ServerKey{tcp("10.96.0.3:80")}) || len(r.Leftovers.Addresses) != 1 || len(r.Foreign) > 0 {
			w.Errorf("the report lists leftovers %v and foreign virtual servers %v", r.Leftovers, r.Foreign)
		}
	})
}

func kubeProxy(f *kerneltest.Fake) error {
	return errors.Join(
		leftover(f),
		f.AddAddress(kernel.BoundAddress{Addr: webKey.Addr.Addr()}),
		f.AddAddress(kernel.BoundAddress{Addr: tcp("10.96.0.2:80").Addr.Addr()}),
		f.AddServer(serverAt(webKey), to("10.244.0.1:8080", 1), to("10.244.9.9:8080", 1)),
		f.AddServer(serverAt(tcp("10.96.0.2:80"))),
	)
}

// leftover creates a virtual server on our device that is neither wanted nor in the ledger.
func leftover(f *kerneltest.Fake) error {
	if !f.State().Device {
		create := kernel.Op{Verb: kernel.Create, Object: kernel.DummyDevice{}}
		if err := f.Apply(context.Background(), []kernel.Op{create})[0]; err != nil {
			return err
		}
	}
	return errors.Join(
		f.AddAddress(kernel.BoundAddress{Addr: tcp("10.96.0.3:80").Addr.Addr()}),
		f.AddServer(serverAt(tcp("10.96.0.3:80")), to("10.244.9.9:8080", 1)),
	)
}

func TestUnwantedServerIsReportedNeverDeleted(t *testing.T) {
	bubble(t, func(w *world) {
		w.put(web())
		w.start()
		w.audit()
		gone := tcp("10.96.0.1:81")
		theirs := func(f *kerneltest.Fake) error { return f.AddServer(serverAt(gone), to("10.244.9.9:1", 1)) }
		w.damage(theirs)
		w.converged(theirs)
		if r := w.lastReport(); !slices.Equal(r.Leftovers.Servers, []kernel.ServerKey{gone}) {
			w.Errorf("leftovers %v", r.Leftovers)
		}
		w.restart()
		w.converged(theirs)
		if n := len(warnings(w, "left alone")); n != 1 {
			w.Errorf("%d warnings", n)
		}
	})
}

func TestForeignAddressOnOurDevice(t *testing.T) {
	bubble(t, func(w *world) {
		w.put(web())
		w.start()
		w.audit()
		theirs := kernel.BoundAddress{Addr: tcp("192.168.7.7:1").Addr.Addr()}
		w.damage(func(f *kerneltest.Fake) error { return f.AddAddress(theirs) })
		w.audit()
		w.remove("web")
		w.calm()
		w.audit()
		if _, there := w.fake.State().Addresses[theirs.Addr]; !there {
			w.Error("a foreign address was removed")
		}
		if r := w.lastReport(); len(r.Leftovers.Addresses) != 1 {
			w.Errorf("leftovers %v", r.Leftovers)
		}
	})
}

// An IPVS dump can miss entries while another program writes. If the dump misses one of our virtual servers, the
// agent does not create it again. If the dump misses a foreign virtual server, the agent does not claim its address.
func TestIncompleteDump(t *testing.T) {
	calmBubble(t, func(w *world) {
		other := tcp("10.96.0.2:80")
		w.damage(foreign(webKey))
		w.put(web(), compiletest.Service("ours", "10.96.0.2", "10.244.0.1"))
		w.start()
		before := w.fake.Dump()
		w.takeReports()
		w.fake.TakeCounts()
		w.fake.DumpMisses(webKey, other)
		w.audit()
		if n := w.fake.TakeCounts().Writes(); n > 0 || w.fake.Dump() != before {
			w.Errorf("got %d writes: %v", n, done(w.takeReports()...))
		}
		w.restart()
		w.untouched()
		w.stop()
		w.takeReports()
		w.mayUnclaim = true
		w.fake.DumpMisses(webKey, other)
		w.start()
		w.audit()
		if d := w.fake.Dump(); d != before {
			w.Errorf("after a start:\n%s", d)
		}
		w.untouched()
	})
}

func TestDeletedAfterAnIncompleteDump(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.put(web("10.244.0.1"))
		w.start()
		w.audit() // the first audit returns everything
		w.fake.DumpMisses(webKey)
		w.audit()
		w.damage(func(f *kerneltest.Fake) error { return f.DelServer(webKey) })
		w.audit()
		w.is()
	})
}

func warnings(w *world, text string) []string {
	var list []string
	for _, e := range w.logs.All() {
		if strings.Contains(e.Message, text) {
			list = append(list, e.Message)
		}
	}
	return list
}
