package doctor

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/explain"
)

const unexplained = "no rule or object on this node stops the packets, but connections fail"

// explainFailures describes why connections may fail although this node's rules and objects do not stop their packets.
func (f *Facts) explainFailures() string {
	var endpoints []netip.Addr
	var reasons []string
	for _, w := range f.Walks {
		if w.Failure == "" || w.Verdict != explain.Passes || refused(w.Failure) {
			continue
		}
		if ports := localPorts + " = " + f.Sysctls[localPorts]; strings.Contains(w.Failure, "cannot assign requested address") && len(reasons) == 0 {
			reasons = append(reasons, "all local ports are in use, or the source address is not local ("+ports+")")
		}
		endpoints = append(endpoints, f.endpointsAt(w)...)
	}
	if len(endpoints) > 0 || len(reasons) > 0 {
		reasons = append(reasons, f.suspicions(endpoints)...)
	}
	if len(reasons) == 0 {
		return unexplained
	}
	return "connections fail, and this may be the reason: " + strings.Join(examples(reasons), "; ")
}

// endpointsAt returns the endpoints to which a path may lead. Without a view, they are all addresses with a known route.
func (f *Facts) endpointsAt(w Walk) (all []netip.Addr) {
	if f.View == nil {
		return slices.SortedFunc(maps.Keys(f.Routes), netip.Addr.Compare)
	}
	for front, e := range allEndpoints(f.View) {
		if front.Is(w.To) {
			all = append(all, e.Address.Addr())
		}
	}
	return all
}
