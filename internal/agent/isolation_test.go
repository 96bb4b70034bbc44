package agent_test

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/kerneltest"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// I14: a fault in one object affects no other object.

// refusesEndpoint makes the kernel refuse a destination. The real kernel refuses the broadcast addresses of its
// networks.
func (w *world) refusesEndpoint(addr string) {
	w.fake.Refuse(func(op kernel.Op) error {
		if d, ok := op.Object.(kernel.ServerDestination); ok && op.Verb == kernel.Create && d.Addr.Addr().String() == addr {
			return syscall.EINVAL
		}
		return nil
	})
}

func exposed(name, clusterIP string, nodePort uint16, endpoints ...string) *model.Service {
	svc := compiletest.Service(name, clusterIP, endpoints...)
	svc.Ports[0].NodePort = nodePort
	return svc
}

// If the kernel refuses objects of most Services in most namespaces, the node is at fault.
func TestRefusalsOfMostServicesAreTheNodesFault(t *testing.T) {
	for name, c := range map[string]struct {
		refused []string
		fails   bool
	}{
		"one tenant with most of the Services": {[]string{"tenant"}, false},
		"every namespace":                      {[]string{"tenant", "default", "kube-system"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			calmBubble(t, func(w *world) {
				refused := map[kernel.ServerKey]bool{}
				for i, namespace := range []string{"default", "kube-system", "tenant", "tenant", "tenant", "tenant"} {
					svc := compiletest.Service(fmt.Sprint("svc-", i), fmt.Sprint("10.96.0.", i+1), "10.244.0.1")
					svc.ID.Namespace = namespace
					refused[tcp(fmt.Sprintf("10.96.0.%d:80", i+1))] = slices.Contains(c.refused, namespace)
					w.put(svc)
				}
				w.fake.Refuse(func(op kernel.Op) error {
					if s, ok := op.Object.(kernel.Server); ok && refused[s.Key] {
						return syscall.EINVAL
					}
					return nil
				})
				w.start()
				if r := w.lastReport(); (r.Err != nil) != c.fails {
					w.Errorf("error: %v", r.Err)
				}
			})
		})
	}
}

type refusal struct {
	kinds []kernel.Kind
	errno syscall.Errno
}

func drawRefusal(t *rapid.T) refusal {
	kinds := []kernel.Kind{kernel.KindAddress, kernel.KindMember, kernel.KindServer, kernel.KindDestination}
	return refusal{
		kinds: rapid.SliceOfNDistinct(rapid.SampledFrom(kinds), 1, len(kinds), rapid.ID[kernel.Kind]).Draw(t, "refused kinds"),
		errno: rapid.SampledFrom([]syscall.Errno{
			syscall.EINVAL, syscall.ERANGE, syscall.EADDRNOTAVAIL, syscall.EAFNOSUPPORT, syscall.EEXIST, syscall.EOPNOTSUPP, 4104, 4353, 9999,
		}).Draw(t, "error"),
	}
}

func (r refusal) hits(op kernel.Op) bool {
	if !slices.Contains(r.kinds, op.KindOf()) {
		return false
	}
	evil := func(a netip.AddrPort) bool {
		return a.Port() == evilNodePort || strings.HasPrefix(a.Addr().String(), "10.66.")
	}
	switch o := op.Object.(type) {
	case kernel.BoundAddress:
		return evil(netip.AddrPortFrom(o.Addr, 0))
	case kernel.Member:
		return evil(netip.AddrPortFrom(o.Element.Addr, o.Element.Port))
	case kernel.Server:
		return evil(o.Key.Addr)
	case kernel.ServerDestination:
		return evil(o.Addr)
	}
	return false
}

const evilNodePort = 30066

func drawService(t *rapid.T, name, clusterIP, pods string, nodePort uint16) *model.Service {
	var endpoints []string
	for _, i := range rapid.SliceOfNDistinct(rapid.IntRange(1, 4), 0, 4, rapid.ID[int]).Draw(t, "endpoints of "+name) {
		endpoints = append(endpoints, fmt.Sprint(pods, i))
	}
	svc := exposed(name, clusterIP, nodePort, endpoints...)
	svc.AffinityTimeout = rapid.SampledFrom([]time.Duration{0, 0, time.Hour}).Draw(t, "affinity of "+name)
	return svc
}

type step struct {
	put    *model.Service
	remove string
	sleep  time.Duration
}

func drawEvil(t *rapid.T) *model.Service {
	return drawService(t, "evil", "10.66.0.1", "10.66.1.", evilNodePort)
}

func drawStep(t *rapid.T) step {
	switch rapid.IntRange(0, 4).Draw(t, "step") {
	case 0:
		return step{put: drawEvil(t)}
	case 1:
		return step{put: drawService(t, "web", "10.96.0.1", "10.244.0.", 30001)}
	case 2:
		return step{put: drawService(t, "dns", "10.96.0.2", "10.244.1.", 30002)}
	case 3:
		return step{remove: rapid.SampledFrom([]string{"evil", "web", "dns"}).Draw(t, "removed")}
	}
	return step{sleep: time.Duration(rapid.IntRange(1, 100_000).Draw(t, "milliseconds")) * time.Millisecond}
}

// The kernel refuses some objects of a hostile Service at the same node address as ordinary Services. The ordinary
// Services must have the same virtual servers as if the hostile Service did not exist. No sync may fail, and the
// agent must not read the kernel more often.
func TestFaultsAffectOneObject(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		refuse := drawRefusal(rt)
		steps := []step{{put: drawEvil(rt)}}
		for range rapid.IntRange(1, 8).Draw(rt, "steps") {
			steps = append(steps, drawStep(rt))
		}
		early := rapid.IntRange(0, 1).Draw(rt, "steps before the start")
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, 0)
			w.calm()
			w.unwatched = true
			w.fake.Refuse(func(op kernel.Op) error {
				if refuse.hits(op) {
					return refuse.errno
				}
				return nil
			})
			for _, s := range steps[:early] {
				w.put(s.put)
			}
			began := time.Now()
			w.start()
			defer w.stop()
			for _, s := range steps[early:] {
				w.take(s)
				w.serveTheOthers(rt)
			}
			w.sufferedNothing(rt, began)
			w.fake.Refuse(nil)
			w.sleep(31 * time.Second)
			w.converged()
		})
	})
}

func (w *world) take(s step) {
	switch {
	case s.put != nil:
		w.put(s.put)
	case s.remove != "":
		w.remove(s.remove)
	default:
		w.sleep(s.sleep)
	}
}

func (w *world) serveTheOthers(t *rapid.T) {
	want := ordinary(idealOver(w.T, w.fake.State(), w.ordinaryServices(), w.around).State())
	if d := cmp.Diff(want, ordinary(w.fake.State())); d != "" {
		t.Errorf("the ordinary Services are affected (-want +have):\n%s", d)
	}
}

func (w *world) sufferedNothing(t *rapid.T, began time.Time) {
	audits := int(time.Since(began)/auditInterval) + 1
	if c := w.fake.TakeCounts(); c.Reads != audits {
		t.Errorf("the kernel was read %d times, want %d audits", c.Reads, audits)
	}
	for _, r := range w.takeReports() {
		if r.Err != nil || r.Drift != 0 {
			t.Errorf("a sync failed: %v; drift %d", r.Err, r.Drift)
		}
	}
}

func (w *world) ordinaryServices() services {
	all := maps.Clone(w.services)
	delete(all, model.ServiceID{Namespace: "default", Name: "evil"})
	return all
}

func ordinary(s *kernel.State) []string {
	var list []string
	add := func(addr netip.AddrPort, text string) {
		if addr.Port() != evilNodePort && !strings.HasPrefix(addr.Addr().String(), "10.66.") {
			list = append(list, text)
		}
	}
	for key, server := range s.Servers {
		add(key.Addr, server.Server.String())
		for _, d := range server.Destinations {
			if d.Weight > 0 {
				add(key.Addr, key.String()+" "+d.Destination.String())
			}
		}
	}
	for set, elements := range s.Members {
		for e := range elements {
			add(netip.AddrPortFrom(e.Addr, e.Port), set+" "+e.String())
		}
	}
	for addr := range s.Addresses {
		add(netip.AddrPortFrom(addr, 0), addr.String())
	}
	slices.Sort(list)
	return list
}

// I16: while iptables hangs, the agent applies endpoint changes. It serves new Services if the rules were already
// complete. Changes that require new rules wait.
func TestIPTablesHangs(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.put(web())
		w.start()
		w.fake.Stick(inet.Families...)
		w.audit()
		w.fake.TakeCounts()
		w.takeReports()
		for i := range 10 {
			endpoint := fmt.Sprintf("10.244.0.%d", 10+i)
			w.put(web(endpoint), compiletest.Service(fmt.Sprint("new-", i), fmt.Sprint("10.96.1.", i+1), endpoint))
			if strings.Count(w.fake.Dump(), "-r "+endpoint+":8080 -m -w 1") != 2 {
				w.Fatalf("an endpoint waits:\n%s", w.fake.Dump())
			}
		}
		w.sleep(3 * auditInterval)
		if c := w.fake.TakeCounts(); c.Reads > 3 {
			w.Errorf("three audits caused %d reads", c.Reads)
		}
		for _, r := range w.takeReports() {
			if len(r.Stuck) != 2 {
				w.Errorf("a report lists these programs as stuck: %v (full: %t)", r.Stuck, r.Full)
			}
		}
		w.fake.Stick()
		w.converged()
		if r := w.lastReport(); len(r.Stuck) > 0 {
			w.Errorf("programs are still reported as stuck: %v", r.Stuck)
		}
	})
}

// An agent that starts while iptables hangs cannot read the rules. Therefore it creates no virtual server that
// depends on them, but applies endpoint changes to existing virtual servers.
func TestStartWhileIPTablesHangs(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.put(web())
		w.start()
		w.fake.Stick(inet.Families...)
		w.restart()
		w.put(web("10.244.0.7"), compiletest.Service("new", "10.96.0.2", "10.244.0.8"))
		if !w.has("-r 10.244.0.7:8080 -m -w 1") || w.has("-r 10.244.0.8:8080") {
			w.Errorf("kernel:\n%s", w.fake.Dump())
		}
		w.fake.Stick()
		w.converged()
	})
}

// I16: while the IPv6 programs hang, the agent serves and repairs IPv4, even after a restart. For IPv6, it applies
// endpoint changes, but new virtual servers wait.
func TestIP6TablesHangs(t *testing.T) {
	for _, when := range []string{"at the start", "later"} {
		t.Run(when, func(t *testing.T) {
			calmBubble(t, func(w *world) {
				w.put(compiletest.Service("web6", "fd00:10::1", "fd00:1::1"))
				w.start()
				w.fake.Stick(inet.IPv6)
				if when == "at the start" {
					w.restart()
				} else {
					w.audit()
					w.takeReports()
				}
				w.put(web("10.244.0.7"), compiletest.Service("web6", "fd00:10::1", "fd00:1::7"))
				if !w.has("-r 10.244.0.7:8080 -m -w 1") || !w.has("-r [fd00:1::7]:8080 -m -w 1") {
					w.Errorf("not served:\n%s", w.fake.Dump())
				}
				before := w.fake.State().Rules[inet.IPv4]
				for range 3 {
					w.damage(func(f *kerneltest.Fake) error { return f.FlushChain(inet.IPv4, compile.Chains[0]) })
					w.audit()
					if !w.fake.State().Rules[inet.IPv4].Holds(before) {
						w.Fatal("the IPv4 rules are not repaired")
					}
				}
				for _, r := range w.takeReports() {
					if stuck := r.Stuck; r.Full && (len(stuck) != 1 || stuck[0].Part != "ip6tables") {
						w.Errorf("a full sync lists these programs as stuck: %v", stuck)
					}
				}
				w.fake.Stick()
				w.converged()
			})
		})
	}
}

// The kernel refuses an endpoint, and later a guard of its port. When the endpoint is due for another attempt, it must wait for the guard.
func TestRetriedEndpointWaitsForItsGuard(t *testing.T) {
	calmBubble(t, func(w *world) {
		const second = "10.244.0.2"
		isGuard := map[string]bool{}
		for _, set := range compile.Base(w.config.Compile).Sets {
			isGuard[set.Name] = set.Timing == want.Guard
		}
		w.refusesEndpoint(second)
		w.put(balanced(web("10.244.0.1"), "203.0.113.1"))
		w.start()
		w.put(balanced(web("10.244.0.1", second), "203.0.113.1"))
		w.sleep(time.Minute) // the endpoint is tried every 30 s now, and the guard more often at first
		w.fake.Refuse(func(op kernel.Op) error {
			if m, ok := op.Object.(kernel.Member); ok && op.Verb == kernel.Create && isGuard[m.Set] {
				return syscall.EINVAL
			}
			return nil
		})
		w.put(ranges(balanced(web("10.244.0.1", second), "203.0.113.1"), "198.51.100.0/24"))
		w.sleep(10 * time.Minute)
		if w.has("ipvsadm -a -t 203.0.113.1:80 -r " + second) {
			t.Errorf("the endpoint is reachable without the guard:\n%s", w.fake.Dump())
		}
		w.fake.Refuse(nil)
		w.converged()
	})
}
