package kernel

import (
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
)

// Device is the dummy interface that holds the virtual addresses. Calico and others detect IPVS mode by this name.
const Device = "kube-ipvs0"

// State is the kernel state of a node: everything that the agent owns, and foreign objects that could conflict with it.
type State struct {
	// Sysctls by name with slashes (net/ipv4/ip_forward); a missing one does not exist on this kernel.
	Sysctls map[string]string
	// Device says whether kube-ipvs0 exists.
	Device bool
	// Addresses on kube-ipvs0. Link-local addresses that the kernel made are left out.
	Addresses map[netip.Addr]struct{}
	// Sets are the owned ipsets by name, with their members.
	Sets    map[string]Set
	Members map[string]map[Element]struct{}
	Rules   map[inet.Family]RulesView
	// RulesErr is why Rules could not be read. Everything else in the state is valid nevertheless: nothing else depends on iptables.
	RulesErr error
	// Servers are all virtual servers by address, also foreign ones. (Firewall-mark servers are foreign and left out.)
	Servers map[ServerKey]ObservedServer
	// Timeouts of IPVS connections, all of them.
	Timeouts Timeouts
}

// ObservedServer is a virtual server as read from the kernel, destinations sorted by address.
type ObservedServer struct {
	Server
	Destinations []ObservedDestination
}

// Destination returns the destination at an address.
func (s ObservedServer) Destination(addr netip.AddrPort) (ObservedDestination, bool) {
	i, found := slices.BinarySearchFunc(s.Destinations, addr, func(d ObservedDestination, a netip.AddrPort) int { return d.Addr.Compare(a) })
	if !found {
		return ObservedDestination{}, false
	}
	return s.Destinations[i], true
}

// NewState returns a state that holds nothing.
func NewState() *State {
	return &State{
		Sysctls:   map[string]string{},
		Addresses: map[netip.Addr]struct{}{},
		Sets:      map[string]Set{},
		Members:   map[string]map[Element]struct{}{},
		Rules:     map[inet.Family]RulesView{},
		Servers:   map[ServerKey]ObservedServer{},
	}
}

// An administrator switches IPv6 off, and on again, with these: for kube-ipvs0, and for devices that are made from then on.
const (
	IPv6Switch       = "net/ipv6/conf/" + Device + "/disable_ipv6"
	IPv6SwitchOfNext = "net/ipv6/conf/default/disable_ipv6"
)

// IPv6Off says whether the kernel refuses IPv6 addresses on kube-ipvs0.
func (s *State) IPv6Off() bool {
	off, made := s.Sysctls[IPv6Switch]
	if !made {
		off = s.Sysctls[IPv6SwitchOfNext]
	}
	return off == "1"
}

// HasMember says whether the set holds the element.
func (s *State) HasMember(m Member) bool {
	_, ok := s.Members[m.Set][m.Element]
	return ok
}
