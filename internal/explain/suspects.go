package explain

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// maxChecks limits the rules and set elements that Suspects compares with packets.
const maxChecks = 50_000_000

// packets is the number of packets of each connection that Suspects traces.
const packets = 3

// Suspects traces a new connection from this node and from each client to each virtual server with endpoints, up to the selection of an
// endpoint. For each foreign rule that stops or may stop some of them, it returns the first and the last of these virtual servers, up to a
// limit. Rules that stop few virtual servers come first: a random sample is unlikely to include one of these. left is the number of virtual
// servers that it did not trace.
func (k *Kernel) Suspects(clients []netip.Addr, limit int) (suspects []kernel.ServerKey, left int) {
	var keys []kernel.ServerKey
	for key, server := range k.Servers {
		if slices.ContainsFunc(server.Destinations, kernel.ObservedDestination.TakesConnections) {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, kernel.ServerKey.Compare)
	affordable := maxChecks / packets / (k.checks() + 1) / (len(clients) + 1)
	if left = max(0, len(keys)-affordable); left > 0 {
		keys = keys[:affordable]
	}
	type stops struct {
		victims     int
		first, last kernel.ServerKey
	}
	byRule := map[string]*stops{}
	for _, key := range keys {
		rules := map[string]bool{}
		for _, client := range append([]netip.Addr{key.Addr.Addr()}, clients...) {
			if client.Is4() == key.Addr.Addr().Is4() {
				k.stoppers(Question{To: key, From: client}, rules)
			}
		}
		for rule := range rules {
			if byRule[rule] == nil {
				byRule[rule] = &stops{first: key}
			}
			byRule[rule].victims, byRule[rule].last = byRule[rule].victims+1, key
		}
	}
	rarest := func(a, b *stops) int { return cmp.Or(cmp.Compare(a.victims, b.victims), a.first.Compare(b.first)) }
	for _, s := range slices.SortedFunc(maps.Values(byRule), rarest) {
		for _, key := range []kernel.ServerKey{s.first, s.last} {
			if len(suspects) < limit && !slices.Contains(suspects, key) {
				suspects = append(suspects, key)
			}
		}
	}
	return suspects, left
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

// stoppers adds the foreign rules that stop or may stop a packet before an endpoint is selected.
func (k *Kernel) stoppers(q Question, rules map[string]bool) {
	e, w := &explaining{k: k, q: q}, &walk{k: k}
	for _, phase := range append([]phase{opens}, laterPhases(q.To.Protocol)...) {
		p := newPacket(k, q)
		if p.phase = phase; phase != opens {
			p.tracking, p.translated = established, k.Mode.NFTablesBalances()
		}
		if !w.passAll(p, e.before(p)) {
			break
		}
		for _, s := range k.MarkServers {
			if phase == opens && p.selects(s) != no {
				rules[p.marker] = true
			}
		}
	}
	for _, rule := range w.foreign {
		rules[rule] = true
	}
}
