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

	"github.com/kube-ipvs/kube-ipvs/e2e/cluster"
	"github.com/kube-ipvs/kube-ipvs/e2e/differential/judge"
)

const (
	perRule  = 4 // pairs of client and server for each rule about connections
	atRandom = 24
	together = 12
	// answerWithin is generous: a loaded, emulated machine must not look like a dropped packet.
	answerWithin = 4 * time.Second
)

// pair is a client and a virtual server that it connects to.
type pair struct {
	client string
	key    judge.Key
}

// sample picks pairs: some that each rule about connections speaks of, and some at random.
func (s *stage) sample(c *judge.Case, theirs, ours judge.State, rng *rand.Rand, tally *judge.Tally) []pair {
	var all []pair
	for key := range theirs.Servers {
		if _, both := ours.Servers[key]; !both || !s.answers(theirs.Servers[key], ours.Servers[key]) {
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
		tally.Concerned[id]++
		if perID[id]++; perID[id] <= limit {
			picked = append(picked, p)
		}
	}
	return picked
}

// answers says whether all destinations are pods that really exist.
func (s *stage) answers(servers ...judge.Server) bool {
	for _, server := range servers {
		for _, d := range server.Serving() {
			if s.podAt(d.Addr()) == "" {
				return false
			}
		}
	}
	return true
}

func (s *stage) podAt(a netip.Addr) string {
	for _, p := range s.world.Pods {
		if p.V4 == a || p.V6 == a {
			return p.Name
		}
	}
	return ""
}

// connect tries every pair in both clusters.
func (s *stage) connect(pairs []pair, theirs, ours judge.State) []judge.Item {
	byKey := map[judge.Key][]pair{}
	for _, p := range pairs {
		byKey[p.key] = append(byKey[p.key], p)
	}
	var (
		mu    sync.Mutex
		items []judge.Item
		wg    sync.WaitGroup
		slots = make(chan struct{}, together)
	)
	for key, clients := range byKey { // one after the other: round robin then reaches every destination
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			a, b := theirs.Servers[key], ours.Servers[key]
			for _, p := range clients {
				item := judge.Item{Kind: judge.Connection, Key: key, Client: p.client,
					KubeProxy: judge.Value{Reach: s.reach(s.theirs, p, a, theirs)}, Ours: judge.Value{Reach: s.reach(s.ours, p, b, ours)}}
				mu.Lock()
				items = append(items, item)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	slices.SortFunc(items, func(a, b judge.Item) int { return cmp.Or(a.Key.Compare(b.Key), cmp.Compare(a.Client, b.Client)) })
	return items
}

var protocols = map[corev1.Protocol]cluster.Protocol{
	corev1.ProtocolTCP: cluster.TCP, corev1.ProtocolUDP: cluster.UDP, corev1.ProtocolSCTP: cluster.SCTP,
}

// reach connects as often as the virtual server has destinations. A persistent one chooses once, and not the same for both
// programs; there only the source counts.
func (s *stage) reach(c *contender, p pair, server judge.Server, state judge.State) judge.Reach {
	client := c.clients[p.client]
	reach := judge.Reach{Outcome: judge.Answered, Seen: map[string]string{}}
	persistent := strings.Contains(server.Options, "-p ")
	times := max(1, len(server.Serving()))
	if persistent {
		times = 1
	}
	for range times {
		got := client.Probe(protocols[p.key.Protocol], p.key.Addr.String(), cluster.Within(answerWithin))
		if got.Outcome != cluster.Answered {
			return judge.Reach{Outcome: string(got.Outcome)}
		}
		who, saw := got.Reply.Server, s.seen(c, client, got.Reply.Source, state)
		switch {
		case persistent && who == client.Name:
			who, saw = "one of them", judge.Itself // met itself by chance
		case persistent:
			who = "one of them"
		}
		reach.Seen[who] = saw
	}
	return reach
}

func (s *stage) seen(c *contender, client *cluster.Host, source netip.Addr, state judge.State) string {
	switch {
	case source == c.node.V4, source == c.node.V6:
		return judge.AsNode
	case source == client.V4, source == client.V6:
		return judge.Itself
	case state.Bound[source]:
		return judge.AsVirtual
	}
	return fmt.Sprint(source)
}
