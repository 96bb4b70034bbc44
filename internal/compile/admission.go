package compile

import (
	"net/netip"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// AdmissionOf returns which clients the ports of some families admit. Clients in pods are inside the cluster.
func AdmissionOf(families []inet.Family, pods []netip.Prefix) kernel.Admission {
	a := kernel.Admission{Pods: pods}
	for _, f := range families {
		a.Closed = append(a.Closed, noLocal.in(f), refused.in(f))
		a.InsideOnly = append(a.InsideOnly, insideOnly.in(f))
		a.Firewalled = append(a.Firewalled, firewalled.in(f))
		a.Allowed = append(a.Allowed, allowed.in(f))
	}
	return a
}
