package kernel

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
)

// Device is the dummy interface to which the virtual addresses are bound. Calico and others detect IPVS mode by this name.
const Device = "kube-ipvs0"

// State is the kernel state of a node: everything that the agent owns, and foreign objects that could conflict with it.
type State struct {
	// Sysctls contains sysctls by name, with slashes (net/ipv4/ip_forward). A missing sysctl does not exist in this kernel.
	Sysctls map[string]string
	Device  bool
	// Addresses contains the addresses that kube-ipvs0 makes local, except link-local addresses that the kernel added.
	Addresses map[netip.Addr]Binding
	// Sets contains the owned ipsets by name, and Members contains their members.
	Sets    map[string]Set
	Members map[string]map[Element]struct{}
	Rules   map[inet.Family]RulesView
	// RulesErr is the reason why a family is missing from Rules. The rest of the state is still valid, because it does
	// not depend on iptables.
	RulesErr RulesError
	// Servers contains all virtual servers by address, including foreign ones but not firewall-mark servers.
	Servers  map[ServerKey]ObservedServer
	Timeouts Timeouts
	// MayMiss is true if unchanged members may be missing from Members: nftables lists are incomplete during a write and briefly after it.
	// A lookup shows whether the missing members exist.
	MayMiss bool
}

// RulesError is the reason why the rules of a family could not be read.
type RulesError map[inet.Family]error

// Err joins the errors. An error shared by several families appears once.
func (e RulesError) Err() (joined error) {
	for _, f := range inet.Families {
		if err := e[f]; err != nil && !errors.Is(joined, err) {
			joined = errors.Join(joined, err)
		}
	}
	return joined
}

// ObservedServer is a virtual server as read from the kernel, with its destinations sorted by address.
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

// NewState returns an empty state.
func NewState() *State {
	return &State{
		Sysctls:   map[string]string{},
		Addresses: map[netip.Addr]Binding{},
		Sets:      map[string]Set{},
		Members:   map[string]map[Element]struct{}{},
		Rules:     map[inet.Family]RulesView{},
		Servers:   map[ServerKey]ObservedServer{},
	}
}

// These sysctls disable IPv6 on kube-ipvs0 and on new devices.
const (
	IPv6Switch       = "net/ipv6/conf/" + Device + "/disable_ipv6"
	IPv6SwitchOfNext = "net/ipv6/conf/default/disable_ipv6"
)

// IPv6Off reports whether the kernel rejects IPv6 addresses on kube-ipvs0.
func (s *State) IPv6Off() bool {
	off, made := s.Sysctls[IPv6Switch]
	if !made {
		off = s.Sysctls[IPv6SwitchOfNext]
	}
	return off == "1"
}

// HasMember reports whether the set contains the element.
func (s *State) HasMember(m Member) bool {
	_, ok := s.Members[m.Set][m.Element]
	return ok
}
