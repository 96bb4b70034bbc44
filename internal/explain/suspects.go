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

// policies recognizes rules of network policies by the names of the chains and tables that network plugins use.
var policies = regexp.MustCompile(`^-t \S+ -A (cali-|KUBE-ROUTER-|KUBE-POD-FW-|KUBE-NWPLCY-|WEAVE-NPC|CILIUM_|ANTREA-)|` +
	`list chain \S+ (calico|kube-router|\S*network-polic|antrea|\S+ (\S*cali-|KUBE-ROUTER-|KUBE-POD-FW-|KUBE-NWPLCY-))`)

// Search selects the connections that Suspects traces.
type Search struct {
	// Suspects traces connections from this node and Clients to every virtual server. From Pods, it traces only connections to the first virtual
	// servers of each family in Sample.
	Clients, Pods []netip.Addr
	Sample        []kernel.ServerKey
	// Limit is the largest number of connections to return.
	Limit int
}

// Suspects are the result of a search.
type Suspects struct {
	Connections []Question
	// Policed are the clients that a network policy stops on purpose. This node is never one of them.
	Policed []netip.Addr
	// Untraced is the number of connections that Suspects did not trace because it had reached maxChecks.
	Untraced int
}

const (
	// maxChecks limits the rules and set elements that Suspects compares with packets. The limit applies separately to connections that it traces
	// completely, and to those that it traces in part.
	maxChecks = 50_000_000
	// packets is the number of packets that Suspects traces for each connection.
	packets = 3
	// eachFamily is the largest number of virtual servers of one address family that Suspects uses from the sample.
	eachFamily = 4
)

// Suspects traces new connections from clients to virtual servers with endpoints. If the virtual server is in the sample, it traces packets to the
// endpoints and back. Otherwise, it traces packets only up to the selection of an endpoint. For each foreign rule that may break connections, it
// returns the first and the last of them. Rules that break few connections come first, because a random sample is likely to miss these connections.
func (k *Kernel) Suspects(s Search) Suspects {
	t := tracing{k: k, checks: packets * (k.checks() + 1), left: map[bool]int{false: maxChecks, true: maxChecks}, byRule: map[string]*broken{}}
	sample := someOf(s.Sample)
	for _, key := range k.targets(sample) {
		whole := slices.Contains(sample, key)
		t.trace(Question{To: key, From: key.Addr.Addr()}, whole)
		for _, client := range s.Clients {
			t.trace(Question{To: key, From: client}, whole)
		}
		for _, pod := range s.Pods {
			if whole && !slices.Contains(s.Clients, pod) {
				t.trace(Question{To: key, From: pod}, whole)
			}
		}
	}
	t.found.Connections = t.rarest(s.Limit)
	return t.found
}

// targets returns the sample, and the other virtual servers with endpoints.
func (k *Kernel) targets(sample []kernel.ServerKey) []kernel.ServerKey {
	var keys []kernel.ServerKey
	for key, server := range k.Servers {
		if !slices.Contains(sample, key) && slices.ContainsFunc(server.Destinations, kernel.ObservedDestination.TakesConnections) {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, kernel.ServerKey.Compare)
	return append(slices.Clone(sample), keys...)
}

// someOf returns the first virtual servers of each family.
func someOf(all []kernel.ServerKey) (keys []kernel.ServerKey) {
	count := map[inet.Family]int{}
	for _, key := range all {
		if family := key.Family(); count[family] < eachFamily && !slices.Contains(keys, key) {
			count[family], keys = count[family]+1, append(keys, key)
		}
	}
	return keys
}

// tracing is the state of a search. checks is an upper bound for the comparisons that the tracing of one connection to a virtual server needs. left
// is the number of comparisons that remain. Its key is true for connections that are traced completely.
type tracing struct {
	k      *Kernel
	checks int
	left   map[bool]int
	byRule map[string]*broken
	found  Suspects
}

// broken are the connections that a rule may break.
type broken struct {
	policy      bool
	count       int
	first, last Question
}

// checks is an upper bound for the comparisons on one packet's way through all rules.
func (k *Kernel) checks() (n int) {
	for _, listings := range []map[inet.Family]kernel.RuleListing{k.Rules, k.Legacy} {
		for _, l := range listings {
			for _, rules := range l.Rules {
				n += len(rules)
			}
		}
	}
	for _, rules := range k.NFTables.Rules {
		n += len(rules)
	}
	for _, set := range k.NFTables.Sets {
		n += len(set.Elements)
	}
	for _, set := range k.OtherSets {
		n += len(set.Elements)
	}
	return n
}

// trace records the foreign rules that may break a connection, unless too few comparisons remain.
func (t *tracing) trace(q Question, whole bool) {
	if q.From.Is4() != q.To.Addr.Addr().Is4() {
		return
	}
	cost := t.checks
	if server, _ := kernel.Match(t.k.Servers, q.To); whole {
		cost *= 1 + 2*len(server.Destinations)
	}
	if t.left[whole] -= cost; t.left[whole] < 0 {
		t.found.Untraced++
		return
	}
	e := &explaining{k: t.k, q: q, quiet: true}
	if p := newPacket(t.k, q); whole {
		e.follow()
	} else if e.beforeIPVS(p) && !e.marked(p) {
		for _, phase := range laterPhases(q.To.Protocol) {
			e.laterArrives(p, phase)
		}
	}
	for _, c := range e.out.Causes {
		for _, rule := range c.Rules {
			t.add(rule, q)
		}
	}
}

func (t *tracing) add(rule string, q Question) {
	b := t.byRule[rule]
	if b == nil {
		b = &broken{policy: policies.MatchString(rule), first: q}
		t.byRule[rule] = b
	}
	if b.policy && q.From != q.To.Addr.Addr() && !slices.Contains(t.found.Policed, q.From) {
		t.found.Policed = append(t.found.Policed, q.From)
	}
	if b.last != q {
		b.count, b.last = b.count+1, q
	}
}

// rarest returns the first connection of each rule, followed by the last connection of each rule. It skips rules of network policies.
func (t *tracing) rarest(limit int) (all []Question) {
	rules := slices.DeleteFunc(slices.Collect(maps.Keys(t.byRule)), func(rule string) bool { return t.byRule[rule].policy })
	slices.SortFunc(rules, func(a, b string) int {
		return cmp.Or(cmp.Compare(t.byRule[a].count, t.byRule[b].count), cmp.Compare(a, b))
	})
	for _, end := range []func(*broken) Question{func(b *broken) Question { return b.first }, func(b *broken) Question { return b.last }} {
		for _, rule := range rules {
			if q := end(t.byRule[rule]); len(all) < limit && !slices.Contains(all, q) {
				all = append(all, q)
			}
		}
	}
	return all
}
