package watch

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"pgregory.net/rapid"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/watch/watchtest"
)

// The tests feed a Store through its sink, as the reflector does.

func mustPut(t rapid.TB, s *Store, objs ...runtime.Object) {
	t.Helper()
	for _, obj := range objs {
		if err := (&sink{store: s}).Update(obj); err != nil {
			t.Fatal(err)
		}
	}
}

func mustDelete(t rapid.TB, s *Store, kind model.Kind, namespace, name string) {
	t.Helper()
	if err := (&sink{store: s, kind: kind}).Delete(newRecord(kind, namespace, name)); err != nil {
		t.Fatal(err)
	}
}

func mustReplace(t rapid.TB, s *Store, kind model.Kind, objs ...runtime.Object) {
	t.Helper()
	list := make([]any, len(objs))
	for i, obj := range objs {
		list[i] = obj
	}
	if err := (&sink{store: s, kind: kind}).Replace(list, ""); err != nil {
		t.Fatal(err)
	}
}

var webID = model.ServiceID{Namespace: "default", Name: "web"}

func TestStoreGroupsSlicesByService(t *testing.T) {
	s := NewStore("")
	// Slices that arrive first wait for their Service and are not reported.
	mustPut(t, s, testSlice("web-2", "web", nil), testSlice("web-1", "web", nil))
	if got := s.Take(); got.Services != nil {
		t.Errorf("slices without a Service are reported: %v", got.Services)
	}
	mustPut(t, s, testService("web", nil))
	first := s.Take().Services[webID]
	if first == nil || len(first.Slices) != 2 || first.Slices[0].Name != "web-1" {
		t.Fatalf("got %+v", first)
	}

	// If one slice changes, the reader still gets the same value for the other slice. Values from an earlier Take do not change.
	mustPut(t, s, testSlice("web-1", "web", func(e *discoveryv1.EndpointSlice) { e.Endpoints[0].Addresses[0] = "10.244.1.6" }))
	second := s.Take().Services[webID]
	if second.Slices[1] != first.Slices[1] {
		t.Error("an unchanged slice was copied")
	}
	if first.Slices[0].Endpoints[0].Addr.String() != "10.244.1.5" {
		t.Error("a value changed after Take returned it")
	}

	// The API server deletes the slices before the Service.
	mustDelete(t, s, model.KindEndpointSlice, "default", "web-1")
	mustDelete(t, s, model.KindEndpointSlice, "default", "web-2")
	if got := s.Take().Services[webID]; got == nil || got.Slices != nil {
		t.Errorf("got %+v", got)
	}
	mustDelete(t, s, model.KindService, "default", "web")
	if got, ok := s.Take().Services[webID]; !ok || got != nil {
		t.Errorf("got %+v %v, want nil", got, ok)
	}
	if len(s.services)+len(s.owners) > 0 {
		t.Errorf("the Store still contains %v %v", s.services, s.owners)
	}
}

func TestStoreSliceChangesOwner(t *testing.T) {
	s, v := NewStore(""), watchtest.NewView()
	mustPut(t, s, testService("web", nil), testService("api", nil), testSlice("x", "web", nil))
	v.Take(s.Take())
	mustPut(t, s, testSlice("x", "api", nil))
	v.Take(s.Take())
	if got := v.Services[webID].Slices; got != nil {
		t.Errorf("web still has slices %v", got)
	}
	if got := v.Services[model.ServiceID{Namespace: "default", Name: "api"}].Slices; len(got) != 1 {
		t.Errorf("api has slices %v, want one", got)
	}
}

// An object that is no longer eligible disappears as if it were deleted.
func TestStoreDropsIneligibleServices(t *testing.T) {
	for name, change := range map[string]func(*v1.Service){
		"headless":     func(s *v1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "None", nil },
		"ExternalName": func(s *v1.Service) { s.Spec.Type = v1.ServiceTypeExternalName },
		"proxy name":   func(s *v1.Service) { s.Labels = map[string]string{labelProxyName: "x"} },
		"invalid":      func(s *v1.Service) { s.Spec.Ports = nil },
	} {
		t.Run(name, func(t *testing.T) {
			s := NewStore("")
			mustPut(t, s, testService("web", nil), testSlice("web-1", "web", nil))
			s.Take()
			mustPut(t, s, testService("web", change))
			if got, ok := s.Take().Services[webID]; !ok || got != nil {
				t.Errorf("got %v %v, want nil", got, ok)
			}
			mustPut(t, s, testService("web", nil))
			if got := s.Take().Services[webID]; got == nil || len(got.Slices) != 1 {
				t.Errorf("the Service is eligible again, but Take returned %v", got)
			}
		})
	}
}

// A relist, or an update of status or annotations, does not wake the reader.
func TestStoreIgnoresIrrelevantUpdates(t *testing.T) {
	s := NewStore("")
	lists := map[model.Kind][]runtime.Object{
		model.KindService:       {testService("web", nil), testService("bad", func(s *v1.Service) { s.Spec.Ports = nil })},
		model.KindEndpointSlice: {testSlice("web-1", "web", nil)},
		model.KindNode:          {testNode()},
	}
	relist := func() {
		for kind, list := range lists {
			mustReplace(t, s, kind, list...)
		}
	}
	relist()
	<-s.Changed()
	s.Take()
	relist()
	mustPut(t, s, testService("web", func(s *v1.Service) { s.Annotations = map[string]string{"a": "b"}; s.ResourceVersion = "9" }))
	heartbeat := testNode()
	heartbeat.Labels, heartbeat.ResourceVersion = map[string]string{"a": "b"}, "9"
	heartbeat.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionFalse, LastHeartbeatTime: metav1.Now()}}
	heartbeat.Status.Images = []v1.ContainerImage{{Names: []string{"x"}}}
	mustPut(t, s, heartbeat)
	select {
	case <-s.Changed():
		t.Errorf("irrelevant updates caused a signal: %+v", s.Take())
	default:
	}
	if c := s.Counts(); c.ServicesPending > 0 || c.EndpointsPending > 0 {
		t.Errorf("irrelevant updates are pending: %+v", c)
	}
	if got := s.Take(); got.Services != nil || got.Problems != nil || got.Nodes != nil {
		t.Errorf("got %+v", got)
	}
}

func TestStoreProblems(t *testing.T) {
	s := NewStore("")
	mustPut(t, s, testService("web", func(s *v1.Service) { s.Spec.Ports = append(s.Spec.Ports, v1.ServicePort{Name: "x"}) }))
	got := s.Take()
	if len(got.Problems[webID.Ref()]) != 1 || got.Services[webID] == nil {
		t.Fatalf("got %+v", got)
	}
	mustPut(t, s, testService("web", nil))
	if list, ok := s.Take().Problems[webID.Ref()]; !ok || len(list) != 0 {
		t.Errorf("after the correction, got problems %v (reported %t)", list, ok)
	}
	mustPut(t, s, testService("web", func(s *v1.Service) { s.Spec.Ports = nil }))
	s.Take()
	mustReplace(t, s, model.KindService)
	if list, ok := s.Take().Problems[webID.Ref()]; !ok || len(list) != 0 {
		t.Errorf("after a relist without the object, got problems %v (reported %t)", list, ok)
	}
}

func TestStoreSynced(t *testing.T) {
	s := NewStore("")
	for i, kind := range listedKinds {
		if s.Synced() {
			t.Errorf("the Store is synced after only %d kinds", i)
		}
		mustReplace(t, s, kind)
	}
	if !s.Synced() {
		t.Error("the Store is not synced after all kinds")
	}
	select {
	case <-s.Changed():
	default:
		t.Error("no signal for an empty cluster, so a reader would wait forever")
	}
}

func TestStoreNodes(t *testing.T) {
	s, v := NewStore(""), watchtest.NewView()
	node := func(name, cidr string) *v1.Node {
		return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1.NodeSpec{PodCIDRs: []string{cidr}}}
	}
	check := func(what, want string) {
		t.Helper()
		select {
		case <-s.Changed():
		default:
			t.Errorf("%s: no signal", what)
		}
		if v.Take(s.Take()); v.String() != want {
			t.Errorf("%s: got\n%s\nwant\n%s", what, v, want)
		}
	}
	mustPut(t, s, node("n1", "10.244.1.0/24"), node("n2", "10.244.2.0/24"))
	check("two", "node n1 [] pods=[10.244.1.0/24]\nnode n2 [] pods=[10.244.2.0/24]")
	first := v.Nodes["n1"]
	mustPut(t, s, node("n1", "10.244.3.0/24"))
	check("changed", "node n1 [] pods=[10.244.3.0/24]\nnode n2 [] pods=[10.244.2.0/24]")
	if first.PodCIDRs[0].String() != "10.244.1.0/24" {
		t.Error("a value changed after Take returned it")
	}
	mustDelete(t, s, model.KindNode, "", "n1")
	check("deleted", "node n2 [] pods=[10.244.2.0/24]")
	mustReplace(t, s, model.KindNode, node("n3", "10.244.4.0/24"))
	check("a list without it", "node n3 [] pods=[10.244.4.0/24]")
	if len(s.nodes) != 1 {
		t.Errorf("the Store has nodes %v, want one", s.nodes)
	}
	mustDelete(t, s, model.KindNode, "", "n9")
	if got := s.Take(); got.Nodes != nil {
		t.Errorf("the deletion of an unknown Node was reported: %v", got.Nodes)
	}
}

type world map[model.ObjectRef]runtime.Object

// drawObject draws a version of an object: Services gain and lose eligibility, slices move between Services and families, and
// the addresses of Nodes change.
func drawObject(t *rapid.T) (model.ObjectRef, runtime.Object) {
	services := []string{"a", "b", "c"}
	switch rapid.SampledFrom(listedKinds[:]).Draw(t, "kind") {
	case model.KindNode:
		return drawNode(t)
	case model.KindService:
		name := rapid.SampledFrom(services).Draw(t, "service")
		svc := testService(name, func(s *v1.Service) {
			s.UID = "u"
			s.Spec.Ports[0].Port = rapid.Int32Range(79, 81).Draw(t, "port")
			switch rapid.IntRange(0, 5).Draw(t, "form") {
			case 0:
				s.Spec.ClusterIP, s.Spec.ClusterIPs = "None", nil
			case 1:
				s.Labels = map[string]string{labelProxyName: ""}
			case 2:
				s.Spec.Ports[0].Port = 0
			case 3:
				s.Spec.Ports = append(s.Spec.Ports, v1.ServicePort{Name: "x", Port: -1})
			}
		})
		return model.ObjectRef{Kind: model.KindService, Namespace: svc.Namespace, Name: name}, svc
	}
	name := fmt.Sprintf("s%d", rapid.IntRange(0, 5).Draw(t, "slice"))
	slice := testSlice(name, rapid.SampledFrom(services).Draw(t, "owner"), func(s *discoveryv1.EndpointSlice) {
		s.Endpoints[0].Addresses[0] = fmt.Sprintf("10.244.0.%d", rapid.IntRange(1, 3).Draw(t, "addr"))
		s.Endpoints[0].Conditions.Ready = ptr(rapid.Bool().Draw(t, "ready"))
		switch rapid.IntRange(0, 5).Draw(t, "form") {
		case 0:
			s.AddressType = discoveryv1.AddressTypeFQDN
		case 1:
			s.Labels[v1.IsHeadlessService] = ""
		case 2:
			s.AddressType = discoveryv1.AddressTypeIPv6 // with an IPv4 address
		case 3:
			delete(s.Labels, discoveryv1.LabelServiceName)
		}
	})
	return model.ObjectRef{Kind: model.KindEndpointSlice, Namespace: slice.Namespace, Name: name}, slice
}

func drawNode(t *rapid.T) (model.ObjectRef, runtime.Object) {
	node := testNode()
	node.Name = rapid.SampledFrom([]string{"n1", "n2"}).Draw(t, "node")
	node.Status.Addresses[0].Address = rapid.SampledFrom([]string{"192.0.2.1", "192.0.2.2", "x"}).Draw(t, "address")
	if rapid.Bool().Draw(t, "leaving") {
		node.Spec.Taints = []v1.Taint{{Key: taintLeaving}}
	}
	return model.NodeRef(node.Name), node
}

func oneShot(t *rapid.T, w world) string {
	s, v := NewStore(""), watchtest.NewView()
	for _, kind := range []model.Kind{model.KindNode, model.KindEndpointSlice, model.KindService} {
		mustReplace(t, s, kind, w.list(kind)...)
	}
	v.Take(s.Take())
	return v.String()
}

func (w world) list(kind model.Kind) []runtime.Object {
	var objs []runtime.Object
	for _, key := range slices.SortedFunc(maps.Keys(w), model.ObjectRef.Compare) {
		if key.Kind == kind {
			objs = append(objs, w[key])
		}
	}
	return objs
}

// The model depends only on the objects, not on their history. The order of events, duplicate events, relists and the timing of Take do not
// matter.
func TestEveryHistoryEndsInTheSameModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, v, w := NewStore(""), watchtest.NewView(), world{}
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				key, obj := drawObject(t)
				w[key] = obj
				for range rapid.IntRange(1, 2).Draw(t, "times") {
					mustPut(t, s, obj)
				}
			},
			"delete": func(t *rapid.T) {
				key, _ := drawObject(t)
				delete(w, key)
				mustDelete(t, s, key.Kind, key.Namespace, key.Name)
			},
			"relist": func(t *rapid.T) {
				kind := rapid.SampledFrom(listedKinds[:]).Draw(t, "relisted")
				if rapid.Bool().Draw(t, "missed events") {
					key, obj := drawObject(t)
					if key.Kind == kind {
						w[key] = obj
					}
				}
				mustReplace(t, s, kind, w.list(kind)...)
			},
			"take": func(*rapid.T) { v.Take(s.Take()) },
			"":     func(*rapid.T) {},
		})
		v.Take(s.Take())
		if got, want := v.String(), oneShot(t, w); got != want {
			t.Fatalf("got\n%s\nwant\n%s", got, want)
		}
		for id, e := range s.services {
			if e.service == nil && len(e.slices) == 0 {
				t.Fatalf("the Store has an unused entry for %v", id)
			}
		}
	})
}

// Events of different objects may arrive in any order.
func TestReorderedEventsGiveTheSameModel(t *testing.T) {
	orders := 0
	defer func() { t.Attr("figure", fmt.Sprintf("%d orders", orders)) }()
	rapid.Check(t, func(t *rapid.T) {
		orders++
		w := world{}
		for range rapid.IntRange(0, 12).Draw(t, "objects") {
			key, obj := drawObject(t)
			w[key] = obj
		}
		all := slices.Concat(w.list(model.KindService), w.list(model.KindEndpointSlice), w.list(model.KindNode))
		s, v := NewStore(""), watchtest.NewView()
		for _, obj := range rapid.Permutation(all).Draw(t, "order") {
			mustPut(t, s, obj)
			if rapid.Bool().Draw(t, "take") {
				v.Take(s.Take())
			}
		}
		v.Take(s.Take())
		if got, want := v.String(), oneShot(t, w); got != want {
			t.Fatalf("got\n%s\nwant\n%s", got, want)
		}
	})
}
