package differential

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-ipvs/kube-ipvs/e2e/differential/draw"
	"github.com/kube-ipvs/kube-ipvs/e2e/differential/judge"
	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

const (
	perRule  = 4 // pairs for each rule about connections
	atRandom = 24
	together = 24 // concurrent connections in each cluster
	// answerWithin is long, so that a slow answer from an emulated machine is not mistaken for a dropped packet.
	answerWithin = 4 * time.Second
)

type pair struct {
	client string
	key    judge.Key
}

// sample picks some pairs for each rule about connections, and some at random.
func (s *stage) sample(c *judge.Case, theirs, ours judge.State, rng *rand.Rand, tally *judge.Tally) []pair {
	var all []pair
	for key := range theirs.Servers {
		if _, both := ours.Servers[key]; !both || s.points(key) || !s.answers(theirs.Servers[key], ours.Servers[key]) {
			continue
		}
		for client := range s.ours.clients {
			all = append(all, pair{client, key})
		}
	}
	slices.SortFunc(all, func(a, b pair) int { return cmp.Or(a.key.Compare(b.key), cmp.Compare(a.client, b.client)) })
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	picked, perID := []pair{}, map[string]int{}
	for _, p := range all {
		limit, id := perRule, c.Concerns(p.client, p.key)
		if id == "" {
			limit = atRandom
		}
		if s.planes { // pairs run concurrently, so all of them take no longer than the slowest one
			limit *= 8
		}
		tally.Concerned[id]++
		if perID[id]++; perID[id] <= limit {
			picked = append(picked, p)
		}
	}
	return picked
}

func (s *stage) answers(servers ...judge.Server) bool {
	for _, server := range servers {
		if !allAnswer(s.world, server.Serving()) {
			return false
		}
	}
	return true
}

func allAnswer(world draw.World, servers []netip.AddrPort) bool {
	return !slices.ContainsFunc(servers, func(s netip.AddrPort) bool { return podAt(world, s.Addr()) == "" })
}

func podAt(world draw.World, a netip.Addr) string {
	for _, p := range world.Pods {
		if p.V4 == a || p.V6 == a {
			return p.Name
		}
	}
	return ""
}

func (s *stage) connect(pairs []pair, theirs, ours judge.State) []judge.Item {
	items := make([]judge.Item, len(pairs))
	var wg sync.WaitGroup
	for _, side := range []struct {
		*contender
		state judge.State
		into  func(*judge.Item, judge.Reach)
	}{
		{s.theirs, theirs, func(i *judge.Item, r judge.Reach) { i.KubeProxy.Reach = r }},
		{s.ours, ours, func(i *judge.Item, r judge.Reach) { i.Ours.Reach = r }},
	} {
		turns := map[judge.Key]*sync.Mutex{}
		slots := make(chan struct{}, together)
		for n, p := range pairs {
			items[n].Kind, items[n].Key, items[n].Client = judge.Connection, p.key, p.client
			server := side.state.Servers[p.key]
			turn := &sync.Mutex{}
			if len(server.Serving()) > 1 && !s.planes { // one after the other, so that round robin reaches every destination
				turn = cmp.Or(turns[p.key], turn)
				turns[p.key] = turn
			}
			wg.Go(func() {
				turn.Lock()
				defer turn.Unlock()
				slots <- struct{}{}
				defer func() { <-slots }()
				side.into(&items[n], s.reach(side.contender, p, server, side.state))
			})
		}
	}
	wg.Wait()
	items = slices.DeleteFunc(items, func(i judge.Item) bool { return reachedItself(i.KubeProxy) != reachedItself(i.Ours) })
	slices.SortFunc(items, func(a, b judge.Item) int { return cmp.Or(a.Key.Compare(b.Key), cmp.Compare(a.Client, b.Client)) })
	return items
}

var protocols = map[corev1.Protocol]cluster.Protocol{
	corev1.ProtocolTCP: cluster.TCP, corev1.ProtocolUDP: cluster.UDP, corev1.ProtocolSCTP: cluster.SCTP,
}

// reach connects once per destination. A persistent virtual server chooses only once, and the choices of the two
// programs may differ, so only the source is compared.
func (s *stage) reach(c *contender, p pair, server judge.Server, state judge.State) judge.Reach {
	client := c.clients[p.client]
	reach := judge.Reach{Outcome: judge.Answered, Seen: map[string]string{}}
	// Persistent virtual servers and nftables do not choose endpoints in turn.
	persistent := strings.Contains(server.Options, "-p ") || s.planes && len(server.Serving()) > 1
	times := max(1, len(server.Serving()))
	if persistent {
		times = 1
	}
	for range times {
		got := client.Probe(protocols[p.key.Protocol], p.key.Addr.String(), cluster.Within(answerWithin))
		if got.Outcome != cluster.Answered {
			return judge.Reach{Outcome: string(got.Outcome)}
		}
		who, saw := got.Reply.Server, sourceOf(s.world, client, got.Reply.Source, state)
		switch {
		case persistent && who == client.Name:
			who, saw = "one of them", byChance
		case persistent:
			who = "one of them"
		}
		reach.Seen[who] = saw
	}
	return reach
}

// byChance is the source if a persistent virtual server happens to choose the client itself. With the other program,
// the client may reach another endpoint, which sees another source. This is not a difference.
const byChance = "itself by chance"

func reachedItself(v judge.Value) bool {
	for _, saw := range v.Reach.Seen {
		if saw == byChance {
			return true
		}
	}
	return false
}

func sourceOf(world draw.World, client *cluster.Host, source netip.Addr, state judge.State) string {
	switch {
	case slices.Contains(world.Interfaces, source) && !state.Bound[source]:
		return judge.AsNode
	case source == client.V4, source == client.V6:
		return judge.Itself
	case state.Bound[source]:
		return judge.AsVirtual
	}
	return fmt.Sprint(source)
}
