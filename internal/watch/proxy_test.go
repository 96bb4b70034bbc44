package watch

import (
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// With and without a proxy name, the label selector matches exactly the objects that are served.
func TestProxyServesWhatItSelects(t *testing.T) {
	for _, of := range []map[string]string{nil, {labelProxyName: ""}, {labelProxyName: "kube-ipvs"}, {labelProxyName: "other"}} {
		for proxy, want := range map[Proxy]bool{"": of == nil, "kube-ipvs": of[labelProxyName] == "kube-ipvs"} {
			c := newTestConverter()
			c.proxy = proxy
			service := c.service(testService("web", func(s *v1.Service) { s.Labels = of }), "")
			slice := c.endpointSlice(testSlice("web-1", "web", func(s *discoveryv1.EndpointSlice) {
				if of != nil {
					s.Labels[labelProxyName] = of[labelProxyName]
				}
			}), "")
			selector, err := labels.Parse(proxy.selector())
			if err != nil {
				t.Fatal(err)
			}
			if got := selector.Matches(labels.Set(of)); got != want {
				t.Errorf("proxy %q selects %v: %t", proxy, of, got)
			}
			if (service.Service != nil) != want || (slice.Slice != nil) != want {
				t.Errorf("proxy %q, labels %v: got Service served %t and slice %t, want %t", proxy, of, service.Service != nil, slice.Slice != nil, want)
			}
		}
	}
}
