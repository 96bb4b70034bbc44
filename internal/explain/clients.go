package explain

import (
	"cmp"
	"maps"
	"net/netip"
	"regexp"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// TCP states of IPVS connections: the client has not confirmed the connection yet, or it has.
var (
	halfOpenStates = []string{"SYN_RECV"}
	openStates     = []string{"ESTABLISHED", "FIN_WAIT", "TIME_WAIT", "CLOSE_WAIT", "LAST_ACK"}
)

// HalfOpen reports whether the client of a TCP connection has not confirmed it yet.
func HalfOpen(c kernel.Connection) bool { return slices.Contains(halfOpenStates, c.State) }

// Complete reports whether the client of a TCP connection has confirmed it.
func Complete(c kernel.Connection) bool { return slices.Contains(openStates, c.State) }

// maxOutsiders limits the clients that Outsiders returns.
const maxOutsiders = 32

// Outsiders returns clients of TCP connections, without this node. Clients with half-open connections come first.
func (k *Kernel) Outsiders() (clients []netip.Addr) {
	seen := map[netip.Addr]bool{}
	for _, take := range []func(kernel.Connection) bool{HalfOpen, Complete} {
		for _, c := range k.Connections {
			if addr := c.Client.Addr(); take(c) && !seen[addr] && len(clients) < maxOutsiders && !k.IsLocal(addr) {
				seen[addr], clients = true, append(clients, addr)
			}
		}
	}
	return clients
}

// policies matches the rules of network policies, by the names that network plugins give their chains and tables.
var policies = regexp.MustCompile(`^-t \S+ -A (cali-|KUBE-ROUTER-|KUBE-POD-FW-|KUBE-NWPLCY-|WEAVE-NPC|CILIUM_|ANTREA-)|` +
	`list chain \S+ (calico|kube-router|\S*network-polic|antrea|\S+ (\S*cali-|KUBE-ROUTER-|KUBE-POD-FW-|KUBE-NWPLCY-))`)

// eachFamily is the number of virtual servers of each family to which Victims traces packets.
const eachFamily = 4

// Victims traces new connections from clients to some virtual servers, and the replies. known are the connections whose paths are examined anyway;
// Victims uses their virtual servers. For each foreign rule that stops or may stop packets of clients, but none of the known connections, it
// returns one connection, up to a limit. Rules that stop few clients come first. policed are the clients that a network policy stops, which is
// intended. left is the number of clients that it did not trace, to limit the work.
func (k *Kernel) Victims(known []Question, clients []netip.Addr, limit int) (victims []Question, policed []netip.Addr, left int) {
	s := search{k: k, budget: maxChecks / 4, checks: k.checks() + 1, traced: map[netip.Addr]bool{}}
	isKnown, byRule := map[string]bool{}, map[string][]Question{}
	keys := someKeys(known)
	for _, q := range known {
		if slices.Contains(keys, q.To) {
			for _, rule := range s.trace(q) {
				isKnown[rule] = true
			}
		}
	}
	for _, key := range keys {
		for _, client := range clients {
			q := Question{To: key, From: client}
			if client.Is4() != key.Addr.Addr().Is4() || slices.Contains(known, q) {
				continue
			}
			for _, rule := range s.trace(q) {
				if !isKnown[rule] && !slices.ContainsFunc(byRule[rule], func(o Question) bool { return o.From == client }) {
					byRule[rule] = append(byRule[rule], q)
				}
			}
		}
	}
	rarest := func(a, b []Question) int {
		return cmp.Or(cmp.Compare(len(a), len(b)), a[0].From.Compare(b[0].From), a[0].To.Compare(b[0].To))
	}
	for _, stopped := range slices.SortedFunc(maps.Values(byRule), rarest) {
		if len(victims) < limit && !slices.Contains(victims, stopped[0]) {
			victims = append(victims, stopped[0])
		}
	}
	return victims, s.policed, s.untraced(clients)
}

// search traces connections until its budget is used up.
type search struct {
	k              *Kernel
	budget, checks int
	traced         map[netip.Addr]bool
	policed        []netip.Addr
}

// trace returns the foreign rules that stop or may stop a new connection or its replies, without those of network policies.
func (s *search) trace(q Question) (rules []string) {
	if s.budget -= s.checks * (1 + 2*len(s.k.Servers[q.To].Destinations)); s.budget < 0 {
		return nil
	}
	s.traced[q.From] = true
	e := &explaining{k: s.k, q: q}
	e.follow()
	for _, rule := range e.foreign {
		if !policies.MatchString(rule) {
			rules = append(rules, rule)
		} else if !slices.Contains(s.policed, q.From) {
			s.policed = append(s.policed, q.From)
		}
	}
	return rules
}

// untraced counts the clients that were not traced because the budget was used up.
func (s *search) untraced(clients []netip.Addr) (n int) {
	for _, client := range clients {
		if s.budget < 0 && !s.traced[client] {
			n++
		}
	}
	return n
}

// someKeys returns the virtual servers of the first questions of each family.
func someKeys(questions []Question) (keys []kernel.ServerKey) {
	count := map[inet.Family]int{}
	for _, q := range questions {
		if family := q.To.Family(); count[family] < eachFamily && !slices.Contains(keys, q.To) {
			count[family], keys = count[family]+1, append(keys, q.To)
		}
	}
	return keys
}
