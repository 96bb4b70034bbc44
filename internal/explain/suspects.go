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

// policies matches the rules of network policies, by the names that network plugins give their chains and tables.
var policies = regexp.MustCompile(`^-t \S+ -A (cali-|KUBE-ROUTER-|KUBE-POD-FW-|KUBE-NWPLCY-|WEAVE-NPC|CILIUM_|ANTREA-)|` +
	`list chain \S+ (calico|kube-router|\S*network-polic|antrea|\S+ (\S*cali-|KUBE-ROUTER-|KUBE-POD-FW-|KUBE-NWPLCY-))`)

// Search selects the connections that Suspects traces.
type Search struct {
	// This node and each of Clients connect to every virtual server. Pods connect only to the first virtual servers of each family in Sample.
	Clients, Pods []netip.Addr
	Sample        []kernel.ServerKey
	// Limit is the largest number of connections to return.
	Limit int
}

// Suspects are the result of a search.
type Suspects struct {
	Connections []Question
	// Policed are the clients, other than this node, that a network policy stops, which is intended.
	Policed []netip.Addr
	// Untraced is the number of connections that were not traced, to limit the work.
	Untraced int
}

const (
	// maxChecks limits the rules and set elements that Suspects compares with packets on their way to virtual servers. It compares as many with
	// packets on their way to endpoints and back.
	maxChecks = 50_000_000
	// packets is the number of packets of each connection that Suspects traces.
	packets = 3
	// eachFamily is the number of virtual servers of each family that Suspects uses from the sample.
	eachFamily = 4
)

// Suspects traces new connections from clients to virtual servers with endpoints: in the sample to the endpoints and back, and otherwise up to
// the selection of an endpoint. For each foreign rule that may break some of them, it returns the first and the last of these connections.
// Rules that break few connections come first: a random sample is unlikely to include one of these.
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

// tracing is the progress of a search. checks is an upper bound for the comparisons on one connection's way to a virtual server, and left are the
// comparisons that remain for connections that are traced in part, and as a whole.
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

// trace traces a connection, unless that costs too much, and records the foreign rules that may break it.
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
	e := &explaining{k: t.k, q: q}
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

// rarest returns connections for each rule, without those of network policies: first one for each rule, and then another one.
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
