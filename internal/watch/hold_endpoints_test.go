package watch

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"pgregory.net/rapid"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

func podSlice(service, pod, addr string) *discoveryv1.EndpointSlice {
	return testSlice(service+"-1", service, func(s *discoveryv1.EndpointSlice) {
		s.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{addr}, TargetRef: &v1.ObjectReference{Kind: "Pod", Namespace: "default", Name: pod}}}
	})
}

// holdSlices returns a Store with n Services whose EndpointSlices the API server has just lost.
func holdSlices(t rapid.TB, n int) *Store {
	t.Helper()
	s := NewStore("")
	mustReplace(t, s, model.KindService)
	mustReplace(t, s, model.KindNode, testNode())
	mustReplace(t, s, model.KindEndpointSlice)
	for i := range n {
		name := fmt.Sprintf("svc-%d", i)
		mustPut(t, s, testService(name, nil), podSlice(name, fmt.Sprintf("pod-%d", i), podAddr(i)))
	}
	mustPut(t, s, testService("host", nil), podSlice("host", "on-the-node", "192.0.2.1"), testService("new", nil))
	listSlices(t, s)
	return s
}

func podAddr(i int) string { return fmt.Sprintf("10.244.0.%d", i+1) }

func listSlices(t rapid.TB, s *Store, all ...any) {
	t.Helper()
	if err := (&sink{store: s, kind: model.KindEndpointSlice, log: zap.NewNop()}).Replace(all, ""); err != nil {
		t.Fatal(err)
	}
}

func endpointsOf(s *Store, service string) (addrs []string) {
	for _, slice := range s.services[model.ServiceID{Namespace: "default", Name: service}].slices {
		for _, e := range slice.Endpoints {
			addrs = append(addrs, e.Addr.String())
		}
	}
	return addrs
}

// A held endpoint gives up its address only to another pod.
func TestHeldEndpointYields(t *testing.T) {
	for name, c := range map[string]struct {
		pod, addr string
		of        string // the Service whose endpoint is held
		want      []string
	}{
		"another pod has its address":      {"another", podAddr(3), "svc-3", nil},
		"the same pod, of another Service": {"pod-3", podAddr(3), "svc-3", []string{podAddr(3)}},
		"another pod on the host network":  {"another", "192.0.2.1", "host", []string{"192.0.2.1"}},
		"another address":                  {"another", "10.244.9.9", "svc-3", []string{podAddr(3)}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := holdSlices(t, 10)
				mustPut(t, s, podSlice("new", c.pod, c.addr))
				if got := endpointsOf(s, c.of); !slices.Equal(got, c.want) {
					t.Errorf("got held endpoints %v, want %v", got, c.want)
				}
				// An endpoint that the API server lists again is no longer held.
				listSlices(t, s, podSlice("svc-3", "pod-3", podAddr(3)))
				if got := endpointsOf(s, "svc-3"); !slices.Equal(got, []string{podAddr(3)}) {
					t.Errorf("the API server lists the endpoint again, but the Store still has %v", got)
				}
				time.Sleep(holdFor + time.Second)
				synctest.Wait()
				if len(s.held.endpoints)+len(s.held.objects) > 0 {
					t.Errorf("objects are still held: %v", s.held)
				}
			})
		})
	}
}

// TestHeldEndpointsNeverShareAnAddress draws random changes after a loss. In any order of changes, a held pod never shares its
// address with another pod.
func TestHeldEndpointsNeverShareAnAddress(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const n = 6
		s := holdSlices(t, n)
		drawn := func(service string) *discoveryv1.EndpointSlice {
			return podSlice(service, fmt.Sprintf("pod-%d", rapid.IntRange(0, 2*n).Draw(t, "pod")), podAddr(rapid.IntRange(0, n).Draw(t, "address")))
		}
		for range rapid.IntRange(1, 8).Draw(t, "changes") {
			service := rapid.SampledFrom([]string{"new", "svc-0", "svc-1"}).Draw(t, "Service")
			if rapid.Bool().Draw(t, "list") {
				listSlices(t, s, drawn(service))
			} else {
				mustPut(t, s, drawn(service))
			}
		}
		live := map[netip.Addr]string{}
		for _, wantHeld := range []bool{false, true} {
			for id, e := range s.services {
				for _, slice := range e.slices {
					_, isHeld := s.held.objects[model.ObjectRef{Kind: model.KindEndpointSlice, Namespace: id.Namespace, Name: slice.Name}]
					for _, o := range slice.Endpoints {
						if pod := live[o.Addr]; isHeld && wantHeld && pod != "" && pod != o.Pod {
							t.Errorf("%s of Service %v is held, but pod %s has its address", o.Pod, id, pod)
						} else if !isHeld {
							live[o.Addr] = o.Pod
						}
					}
				}
			}
		}
	})
}
