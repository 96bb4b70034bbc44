package compile_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// A Service whose ready endpoints serve none of its ports looks healthy in the cluster, because its pods are ready, and its EndpointSlices list them.
func TestProblemsOfReadyEndpointsThatServeNothing(t *testing.T) {
	ipv6 := netip.MustParseAddr("fd00:10:96::1")
	for name, c := range map[string]struct {
		change      func(*model.Service)
		field, text string // empty for no Problem
	}{
		"port names agree":   {func(*model.Service) {}, "", ""},
		"other name":         {func(s *model.Service) { s.Slices[0].Ports[0].Name = "web" }, "spec.ports[0].name", "port http/tcp; the ports of the EndpointSlices are web/tcp"},
		"no name":            {func(s *model.Service) { s.Slices[0].Ports[0].Name = "" }, "spec.ports[0].name", "the ports of the EndpointSlices are unnamed/tcp."},
		"no ports":           {func(s *model.Service) { s.Slices[0].Ports = nil }, "spec.ports[0].name", "the EndpointSlices have no ports."},
		"no slice":           {func(s *model.Service) { s.Slices = nil }, "", ""},
		"no endpoint":        {func(s *model.Service) { s.Slices[0].Endpoints = nil }, "", ""},
		"one family only":    {func(s *model.Service) { s.ClusterIPs = append(s.ClusterIPs, ipv6) }, "spec.ipFamilies", "none has an IPv6 address."},
		"nothing ready":      {func(s *model.Service) { s.Slices[0].Ports[0].Name = "web"; s.Slices[0].Endpoints[0].Ready = false }, "", ""},
		"none ready by name": {func(s *model.Service) { s.Slices[0].Endpoints[0].Ready = false }, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			svc := compiletest.Service("web", "10.96.0.1", "10.244.0.1")
			c.change(svc)
			problems := scratch(services{svc.ID: svc}).Problems(svc.ID)
			switch {
			case c.field == "" && len(problems) > 0:
				t.Errorf("got problems %v, want none", problems)
			case c.field != "" && (len(problems) != 1 || problems[0].Field != c.field || !strings.Contains(problems[0].Reason, c.text)):
				t.Errorf("got problems %v, want one for %s that contains %q", problems, c.field, c.text)
			}
		})
	}
}
