package explain

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// Query is the subject of a trace: an address and port, or a Service.
type Query struct {
	Addr     netip.AddrPort
	Protocol inet.Protocol // 0 if not given
	Service  model.ServiceID
	Port     string // name or number; empty for all ports
}

const queryForms = "use ADDRESS:PORT[/PROTOCOL], such as 10.96.0.10:53/udp or [fd00::10]:53, or NAMESPACE/NAME[:PORT], such as kube-system/kube-dns:dns"

// ParseQuery parses a query.
func ParseQuery(text string) (Query, error) {
	place, protocol := text, inet.Protocol(0)
	if left, right, found := strings.Cut(text, "/"); found && strings.Contains(left, ":") {
		parsed, err := inet.ParseProtocol(right)
		if err != nil {
			return Query{}, fmt.Errorf("%q: %w; %s", text, err, queryForms)
		}
		place, protocol = left, parsed
	}
	if addr, err := netip.ParseAddrPort(place); err == nil && addr.Port() > 0 {
		return Query{Addr: netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port()), Protocol: protocol}, nil
	}
	id, port, _ := strings.Cut(text, ":")
	service, err := ParseServiceID(id)
	if err != nil || protocol != 0 {
		return Query{}, fmt.Errorf("%q is neither an address with a port nor a Service; %s", text, queryForms)
	}
	return Query{Service: service, Port: port}, nil
}

// ParseServiceID parses NAMESPACE/NAME.
func ParseServiceID(text string) (model.ServiceID, error) {
	namespace, name, found := strings.Cut(text, "/")
	if !found || namespace == "" || name == "" || strings.Contains(name, "/") {
		return model.ServiceID{}, fmt.Errorf("%q: use NAMESPACE/NAME, such as default/web", text)
	}
	return model.ServiceID{Namespace: namespace, Name: name}, nil
}

// ParseClient parses the address of a client, or the client's address and port in an existing connection. An empty text means any client.
func ParseClient(text string) (Question, error) {
	if addr, err := netip.ParseAddr(text); text == "" || err == nil {
		return Question{From: addr.Unmap()}, nil
	}
	addr, err := netip.ParseAddrPort(text)
	if err != nil || addr.Port() == 0 {
		return Question{}, fmt.Errorf("--from %q: use an IP address, optionally with a port, such as 10.244.1.7, 10.244.1.7:40312 or [fd00::7]:40312", text)
	}
	return Question{From: addr.Addr().Unmap(), FromPort: addr.Port()}, nil
}

// CheckFamily returns an error if the client's address family differs from that of the query.
func (q Query) CheckFamily(client Question) error {
	at := q.Addr.Addr()
	if at.IsValid() && client.From.IsValid() && at.Is4() != client.From.Is4() {
		return fmt.Errorf("--from %s and %s are of different address families", client.From, q.Addr)
	}
	return nil
}

// Keys lists the frontends of the query. v is nil if no agent responds.
func (q Query) Keys(k *Kernel, v *view.View) ([]kernel.ServerKey, error) {
	if q.Addr.IsValid() {
		return []kernel.ServerKey{{Addr: q.Addr, Protocol: cmp.Or(q.Protocol, q.servedProtocol(k, v))}}, nil
	}
	if v == nil {
		return nil, fmt.Errorf("%s: only the agent knows the names of Services, and it does not respond; use ADDRESS:PORT[/PROTOCOL]", q.Service)
	}
	var places []kernel.ServerKey
	ports := map[string]bool{}
	for _, s := range v.Services {
		if s.ID() != q.Service.String() {
			continue
		}
		for _, f := range s.Frontends {
			ports[cmp.Or(f.Port, strconv.Itoa(int(f.Address.Port())))] = true
			if q.Port == "" || q.Port == f.Port || q.Port == strconv.Itoa(int(f.Address.Port())) {
				protocol, _ := inet.ParseProtocol(f.Protocol)
				places = append(places, kernel.ServerKey{Addr: f.Address, Protocol: protocol})
			}
		}
	}
	switch {
	case len(ports) == 0:
		return nil, NotServed(q.Service.String())
	case len(places) == 0:
		return nil, fmt.Errorf("Service %s has no port %q; its ports are %s", q.Service, q.Port, strings.Join(slices.Sorted(maps.Keys(ports)), ", "))
	}
	return places, nil
}

// Explain traces a client's packet to every frontend of the query that has the client's address family.
func (q Query) Explain(k *Kernel, v *view.View, base view.Base, client Question) ([]Explanation, error) {
	places, err := q.Keys(k, v)
	if err != nil {
		return nil, err
	}
	var answers []Explanation
	for _, client.To = range places {
		if !client.From.IsValid() || client.From.Is4() == client.To.Addr.Addr().Is4() {
			answers = append(answers, Explain(k, v, base, client))
		}
	}
	if len(answers) == 0 {
		return nil, fmt.Errorf("--from %s: no frontend has this address family", client.From)
	}
	return answers, nil
}

// Concerns returns a filter for the virtual servers of the query. It uses only information that is available before the
// kernel is read.
func (q Query) Concerns(v *view.View) func(kernel.ServerKey) bool {
	if q.Addr.IsValid() || v == nil {
		return func(key kernel.ServerKey) bool { return key.Addr == q.Addr }
	}
	fronts := map[netip.AddrPort]bool{}
	for _, s := range v.Services {
		for _, f := range s.Frontends {
			fronts[f.Address] = true
		}
	}
	return func(key kernel.ServerKey) bool { return fronts[key.Addr] }
}

// servedProtocol returns the protocol served at the address. It prefers TCP, and also returns TCP if no protocol is
// served.
func (q Query) servedProtocol(k *Kernel, v *view.View) inet.Protocol {
	for _, p := range []inet.Protocol{inet.TCP, inet.UDP, inet.SCTP} {
		if _, stands := k.Servers[kernel.ServerKey{Addr: q.Addr, Protocol: p}]; stands {
			return p
		}
		if v != nil && slices.ContainsFunc(v.Services, func(s view.Service) bool {
			return slices.ContainsFunc(s.Frontends, func(f view.Frontend) bool { return f.Address == q.Addr && f.Protocol == p.String() })
		}) {
			return p
		}
	}
	return inet.TCP
}

// NotServed is the error for a Service that is not in the agent's view.
func NotServed(service string) error {
	return fmt.Errorf("this node serves no Service %s (it does not exist, has no ClusterIP, or belongs to another service proxy)", service)
}
