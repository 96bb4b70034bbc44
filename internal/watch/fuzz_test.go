package watch

import (
	"encoding/json"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kube-ipvs/kube-ipvs/internal/watch/watchtest"
)

// Converting any object gives a valid result.
func FuzzConvert(f *testing.F) {
	for kind, seeds := range [][]string{
		{
			`{"spec":{"clusterIP":"10.0.0.1","ports":[{"port":80}]}}`,
			`{"spec":{"clusterIPs":["10.0.0.1","fd::1"],"sessionAffinity":"ClientIP","ports":[{"port":1}]}}`,
			`{"spec":{"type":"NodePort","externalIPs":["192.0.2.1"],"ports":[{"nodePort":30080}]}}`,
			`{"spec":{"type":"LoadBalancer","healthCheckNodePort":1,"loadBalancerSourceRanges":["::/0"]}}`,
			`{"status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.9","ipMode":"VIP"}]}}}`,
		},
		{
			`{"addressType":"IPv4","ports":[{"port":80}],"endpoints":[{"addresses":["10.1.0.1"]}]}`,
			`{"addressType":"IPv6","endpoints":[{"nodeName":"n","hints":{"forZones":[{"name":"a"}]}}]}`,
		},
		{`{"spec":{"podCIDRs":["10.1.0.0/24"]}}`, `{"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.1"}]}}`},
	} {
		for _, seed := range seeds {
			f.Add(uint8(kind), []byte(seed))
		}
	}
	f.Fuzz(func(t *testing.T, kind uint8, data []byte) {
		meta := metav1.ObjectMeta{Name: "a", Namespace: "b", Labels: map[string]string{discoveryv1.LabelServiceName: "c"}}
		obj := []runtime.Object{&v1.Service{ObjectMeta: meta}, &discoveryv1.EndpointSlice{ObjectMeta: meta}, &v1.Node{ObjectMeta: meta}}[kind%3]
		if json.Unmarshal(data, obj) != nil {
			return
		}
		r, err := newTestConverter().Convert(obj, "")
		if err != nil {
			t.Fatal(err)
		}
		watchtest.Check(t, r.Service, r.Slice, r.Node, r.Problems)
		// The conversion is deterministic, and the Store can add and remove the result.
		again, _ := newTestConverter().Convert(obj, "")
		if !equalService(r.Service, again.Service) || !equalSlice(r.Slice, again.Slice) || !equalNode(r.Node, again.Node) {
			t.Errorf("two conversions differ: %+v, %+v", r, again)
		}
		s := NewStore("")
		s.apply(r)
		s.Take()
		mustDelete(t, s, r.kind, r.Namespace, r.Name)
		s.Take()
		if len(s.services)+len(s.owners)+len(s.nodes)+len(s.problems) > 0 {
			t.Errorf("the Store still contains %v %v %v %v", s.services, s.owners, s.nodes, s.problems)
		}
	})
}
