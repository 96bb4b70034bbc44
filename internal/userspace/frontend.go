package userspace

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/kube-ipvs/kube-ipvs/internal/forward"
	"github.com/kube-ipvs/kube-ipvs/internal/forward/virtual"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// unprivileged is the lowest port that any process may listen on.
const unprivileged = 1024

// frontend is a Service port in one family, and the listener that serves it.
type frontend struct {
	owner    model.ServicePortRef
	protocol inet.Protocol
	// serves is the frontend that the listener stands for: the address and port of the ClusterIP, or the node port.
	serves string
	listen forward.Listen
	target forward.Target
	// address is an address that the machine needs for the listener; invalid if it has the address anyway.
	address netip.Addr
}

func nodePort(at netip.AddrPort) string { return fmt.Sprintf("node port %d", at.Port()) }

// frontendOf returns the listener of a virtual server. It listens at the node port if any process may, and otherwise at
// a port that the system chooses.
func frontendOf(s *want.Server) frontend {
	f := frontend{owner: s.Owner, protocol: s.Key.Protocol, serves: s.Key.Addr.String(), target: virtual.Target(s.Server, s.Destinations)}
	number := uint16(0)
	if s.Key.Addr.Addr() == s.Key.Family().Loopback() {
		f.serves = nodePort(s.Key.Addr)
		number = s.Key.Addr.Port()
	}
	f.listen = forward.Listen{Protocol: forward.Protocol(f.protocol.String()), At: netip.AddrPortFrom(s.Key.Family().Loopback(), number)}
	if number < unprivileged {
		f.listen.At = netip.AddrPortFrom(f.listen.At.Addr(), 0)
		f.listen.Name = s.Owner.String()
	}
	return f
}

// taking returns the number of endpoints that get new clients.
func (f frontend) taking() (n int) {
	for _, e := range f.target.Endpoints {
		if e.Weight > 0 {
			n++
		}
	}
	return n
}

// problem describes why clients are not served. err is the reason why the listener could not be opened.
func (f frontend) problem(err error) model.Problem {
	p := model.Problem{
		Object: f.owner.Service.Ref(), Service: f.owner.Service, Field: "spec.ports", Value: fmt.Sprintf("%s/%s", f.owner.Port, f.protocol),
	}
	p.Reason = "not served: " + err.Error() + ". The agent retries every " + retry.String()
	if errors.Is(err, errInUse) {
		p.Remedy = "stop the process that has the port, or use another node port"
	}
	return p
}
