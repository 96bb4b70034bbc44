package compile

import "github.com/kube-ipvs/kube-ipvs/internal/inet"

// Admission contains the names of the sets that decide which clients may connect to a port, for a data plane that has no
// rules to match them.
type Admission struct {
	// Closed ports admit no client. InsideOnly ports admit pods and the node itself. Firewalled ports admit the clients in
	// Allowed.
	Closed, InsideOnly, Firewalled, Allowed []string
}

// AdmissionOf returns the sets of some families.
func AdmissionOf(families []inet.Family) (a Admission) {
	for _, f := range families {
		a.Closed = append(a.Closed, noLocal.in(f), refused.in(f))
		a.InsideOnly = append(a.InsideOnly, insideOnly.in(f))
		a.Firewalled = append(a.Firewalled, firewalled.in(f))
		a.Allowed = append(a.Allowed, allowed.in(f))
	}
	return a
}
