package watch

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"pgregory.net/rapid"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// I15: an object that is missing from a list is not deleted immediately.

func crowd(t rapid.TB, n int) (*Store, []runtime.Object) {
	t.Helper()
	s := NewStore("")
	var all []runtime.Object
	for i := range n {
		name := fmt.Sprintf("svc-%d", i)
		svc := &v1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Spec: v1.ServiceSpec{
				ClusterIP: fmt.Sprintf("10.96.0.%d", i+1), ClusterIPs: []string{fmt.Sprintf("10.96.0.%d", i+1)},
				Ports: []v1.ServicePort{{Port: 80, Protocol: v1.ProtocolTCP}},
			},
		}
		all = append(all, svc)
		mustPut(t, s, svc, &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: name + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: name}},
			AddressType: discoveryv1.AddressTypeIPv4,
		})
	}
	mustReplace(t, s, model.KindNode)
	s.listed[model.KindEndpointSlice] = true
	mustList(t, s, all...)
	s.Take()
	return s, all
}

func mustList(t rapid.TB, s *Store, objs ...runtime.Object) {
	t.Helper()
	var list []any
	for _, obj := range objs {
		list = append(list, obj)
	}
	if err := (&sink{store: s, kind: model.KindService, log: zap.NewNop()}).Replace(list, ""); err != nil {
		t.Fatal(err)
	}
}

func (c knowledge) services() (live, held int) {
	for _, svc := range c {
		switch {
		case svc == nil:
		case svc.Held:
			held++
		default:
			live++
		}
	}
	return live, held
}

type knowledge map[model.ServiceID]*model.Service

func (c knowledge) take(s *Store) model.Changes {
	changes := s.Take()
	for id, svc := range changes.Services {
		if c[id] = svc; svc == nil {
			delete(c, id)
		}
	}
	return changes
}

func TestListThatLacksMostServices(t *testing.T) {
	for name, c := range map[string]struct {
		listed int
		then   func(t *testing.T, s *Store, all []runtime.Object)
		live   int
	}{
		"the next list has them again": {2, func(t *testing.T, s *Store, all []runtime.Object) { mustList(t, s, all...) }, 10},
		"the next list agrees":         {2, func(t *testing.T, s *Store, all []runtime.Object) { mustList(t, s, all[:2]...) }, 2},
		"no further list":              {0, func(*testing.T, *Store, []runtime.Object) { time.Sleep(holdFor + time.Second) }, 0},
		"some are recreated": {0, func(t *testing.T, s *Store, all []runtime.Object) {
			mustPut(t, s, all[3:6]...)
			time.Sleep(holdFor + time.Second)
		}, 3},
		"a watch reports a deletion": {0, func(t *testing.T, s *Store, all []runtime.Object) {
			mustDelete(t, s, model.KindService, "default", "svc-1")
			if live := s.services[model.ServiceID{Namespace: "default", Name: "svc-1"}].service; live != nil {
				t.Error("a reported deletion must take effect immediately")
			}
			mustList(t, s, all[2:]...)
		}, 8},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, all := crowd(t, 10)
				known := knowledge{}
				for _, svc := range all {
					known[model.ServiceID{Namespace: "default", Name: svc.(*v1.Service).Name}] = &model.Service{}
				}
				mustList(t, s, all[:c.listed]...)
				if changes := known.take(s); changes.Held != 10-c.listed {
					t.Errorf("Changes.Held is %d, want %d", changes.Held, 10-c.listed)
				}
				if live, held := known.services(); live != c.listed || held != 10-c.listed {
					t.Errorf("%d Services exist and %d are held, want %d and %d", live, held, c.listed, 10-c.listed)
				}
				c.then(t, s, all)
				synctest.Wait()
				changes := known.take(s)
				if live, held := known.services(); live != c.live || held != 0 || changes.Held != 0 {
					t.Errorf("in the end, %d Services exist and %d are held; Changes.Held is %d", live, held, changes.Held)
				}
			})
		})
	}
}

// Each object is held for its full time, even if others were held before it.
func TestHoldsEndSeparately(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, all := crowd(t, 10)
		holds := func(when string, slices, services int) {
			t.Helper()
			synctest.Wait()
			held := map[model.Kind]int{}
			s.mu.Lock()
			defer s.mu.Unlock()
			for key := range s.held.objects {
				held[key.Kind]++
			}
			if held[model.KindEndpointSlice] != slices || held[model.KindService] != services {
				t.Errorf("%s: %v are held, want %d EndpointSlices and %d Services", when, held, slices, services)
			}
		}
		listSlices(t, s)
		holds("first", 10, 0)
		time.Sleep(20 * time.Second)
		mustList(t, s, all[:1]...)
		s.release() // as a timer does that has fired while the list was applied
		holds("20 s later", 10, 9)
		time.Sleep(15 * time.Second)
		holds("after the time of the EndpointSlices", 0, 9)
		time.Sleep(20 * time.Second)
		holds("after the time of the Services", 0, 0)
	})
}

// TestListNeverTakesMost draws lists at random. No single list removes most Services, whether or not they have Problems.
func TestListNeverTakesMost(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.IntRange(fewMissing+1, 20).Draw(t, "Services")
		s, all := crowd(t, n)
		var listed []runtime.Object
		for _, obj := range all {
			svc := obj.(*v1.Service)
			if rapid.Bool().Draw(t, "has a Problem") {
				svc.Annotations = map[string]string{annotationPrefix + "nonsense": "x"}
				mustPut(t, s, svc)
			}
			if rapid.IntRange(0, 3).Draw(t, "listed") == 0 {
				listed = append(listed, svc)
			}
		}
		s.Take()
		mustList(t, s, listed...)
		lost := 0
		for _, svc := range s.Take().Services {
			if svc == nil {
				lost++
			}
		}
		if 2*lost > n && lost > fewMissing {
			t.Errorf("a list with %d of %d Services removed %d Services", len(listed), n, lost)
		}
	})
}

func listNodes(t *testing.T, s *Store, nodes ...any) (lost int) {
	t.Helper()
	if err := (&sink{store: s, kind: model.KindNode, log: zap.NewNop()}).Replace(nodes, ""); err != nil {
		t.Fatal(err)
	}
	for _, node := range s.Take().Nodes {
		if node == nil {
			lost++
		}
	}
	return lost
}

// A list that lacks most Nodes with endpoints removes no Node until a second list or a timeout confirms the loss, because an
// agent without its Node reports that the node is leaving.
func TestListThatLacksMostNodes(t *testing.T) {
	for n := 1; n <= 6; n++ {
		for listed := 0; 2*listed < n; listed++ {
			for then, wait := range map[string]time.Duration{"a second list": 0, "half a minute": holdFor + time.Second} {
				t.Run(fmt.Sprintf("%d of %d, then %s", listed, n, then), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						s, _ := crowd(t, 1)
						var all []any
						for i := range n {
							node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%d", i)}}
							all = append(all, node)
							mustPut(t, s, testSlice("on-"+node.Name, "svc-0", func(slice *discoveryv1.EndpointSlice) {
								slice.Endpoints[0].NodeName = &node.Name
							}))
						}
						listNodes(t, s, all...)
						if lost := listNodes(t, s, all[:listed]...); lost > 0 {
							t.Errorf("the first list removed %d Nodes, want none", lost)
						}
						time.Sleep(wait)
						synctest.Wait()
						if lost := listNodes(t, s, all[:listed]...); lost != n-listed {
							t.Errorf("the next list removed %d Nodes, want %d", lost, n-listed)
						}
					})
				})
			}
		}
	}
}
