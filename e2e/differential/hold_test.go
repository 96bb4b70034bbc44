package differential

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-ipvs/kube-ipvs/e2e/differential/judge"
	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

const (
	heldConns  = 30 // connections that stay open
	perCheck   = 40 // probes after each event
	againCheck = 10 // probes by returning clients with affinity
	drainLimit = 15 * time.Minute
)

// heldConn is an open connection that must not break without a reason.
type heldConn struct {
	conn   *cluster.Conn
	client string
	key    judge.Key
	from   string // the Service
	server netip.AddrPort
	opened time.Duration
	// removed is the time when the endpoint was removed. reason says why the connection may break. It is empty if
	// the connection must not break.
	removed time.Time
	reason  string
}

type contact struct {
	client string
	key    judge.Key
}

// stuck is the endpoint that a client with affinity must reach again.
type stuck struct {
	server string
	at     time.Time
	from   string // the Service
	object string // the Service, its endpoints and the node, to detect changes
}

// forget deletes the stored endpoints of clients whose Service or endpoints have changed. It runs for every set of
// objects, because affinity is lost even if a change is reverted.
func (w *week) forget() {
	c, objects := judge.NewCase(w.world, w.given, w.created), map[string]string{}
	maps.DeleteFunc(w.contacts, func(to contact, s stuck) bool {
		if _, ok := objects[s.from]; !ok {
			objects[s.from] = w.only(s.from).YAML()
		}
		cl, ok := c.Holder(to.key)
		return !ok || cl.Service.ID() != s.from || objects[s.from] != s.object
	})
}

// disturb records that connections may break and clients may lose their endpoints.
func (w *week) disturb(what happening) {
	for _, h := range w.held {
		h.reason = string(what)
	}
	clear(w.contacts)
}

// speak sends data over every open connection. A connection may fail only if its reason is set.
func (w *week) speak() error {
	w.excuseAll()
	var kept []*heldConn
	for _, h := range w.held {
		if _, err := h.conn.Ping(); err == nil {
			kept = append(kept, h)
			continue
		} else if h.reason == "" {
			return fmt.Errorf("a connection from %s to %s (%s), open since %s, was lost without a reason: %w", h.client, h.key, h.server, h.opened, err)
		}
		h.conn.Close()
	}
	w.held = kept
	return nil
}

func (w *week) excuseAll() {
	c := judge.NewCase(w.world, w.given, w.created)
	for _, h := range w.held {
		h.excuse(c)
	}
}

// excuse sets the reason if the current objects explain why the connection may break.
func (h *heldConn) excuse(c *judge.Case) {
	cl, ok := c.Holder(h.key)
	if !ok || cl.Service.ID() != h.from {
		h.reason = "another Service, or none, has the address"
		return
	}
	e, _ := c.Expect(h.client, h.key)
	switch {
	case slices.Contains(e.Servers, h.server):
		h.removed = time.Time{}
	case h.removed.IsZero():
		h.removed = time.Now()
	case time.Since(h.removed) > drainLimit-time.Minute:
		h.reason = "its endpoint was removed"
	}
	if !slices.Contains(e.Outcomes, judge.Answered) {
		h.reason = "the client is no longer served" // a policy, a source range, or no endpoints
	}
}

// hold opens connections until heldConns of them are open.
func (w *week) hold(c *judge.Case) error {
	rng := rand.New(rand.NewPCG(uint64(len(w.contacts)), uint64(w.probes)))
	for _, p := range w.pairs(c, rng, 4*heldConns) {
		if len(w.held) >= heldConns {
			break
		}
		e, ok := c.Expect(p.client, p.key)
		if !ok || p.key.Protocol != corev1.ProtocolTCP || !slices.Contains(e.Outcomes, judge.Answered) || !allAnswer(w.world, e.Servers) {
			continue
		}
		conn, err := w.clients[p.client].Dial(cluster.TCP, p.key.Addr.String(), cluster.Within(answerWithin))
		if err != nil {
			return fmt.Errorf("open a connection from %s to %s: %w", p.client, p.key, err)
		}
		cl, _ := c.Holder(p.key)
		h := &heldConn{conn: conn, client: p.client, key: p.key, from: cl.Service.ID(), opened: time.Since(w.began).Round(time.Second)}
		for _, s := range e.Servers {
			if podAt(w.world, s.Addr()) == conn.Server {
				h.server = s
			}
		}
		w.held = append(w.held, h)
	}
	return nil
}

// pairs draws pairs of a client and a claimed address.
func (w *week) pairs(c *judge.Case, rng *rand.Rand, n int) (all []pair) {
	keys := c.Keys()
	if len(keys) == 0 {
		return nil
	}
	for range n {
		all = append(all, pair{w.world.Clients[rng.IntN(len(w.world.Clients))].Name, keys[rng.IntN(len(keys))]})
	}
	return all
}

// probe connects to random addresses and compares the results with the objects.
func (w *week) probe(c *judge.Case, rng *rand.Rand, state judge.State) error {
	for _, p := range append(w.pairs(c, rng, perCheck), w.returningClients(rng)...) {
		e, ok := c.Expect(p.client, p.key)
		if !ok || !allAnswer(w.world, e.Servers) {
			continue
		}
		w.probes++
		within := answerWithin
		if !slices.Contains(e.Outcomes, judge.Answered) {
			within = cluster.DefaultSilence
		}
		got := w.clients[p.client].Probe(protocols[p.key.Protocol], p.key.Addr.String(), cluster.Within(within))
		if err := w.judge(c, p, e, got, state); err != nil {
			cl, _ := c.Holder(p.key)
			return fmt.Errorf("from %s to %s of\n%s\n%w", p.client, p.key, w.only(cl.Service.ID()).YAML(), err)
		}
	}
	return nil
}

func (w *week) judge(c *judge.Case, p pair, e judge.Expectation, got cluster.Result, state judge.State) error {
	if !slices.Contains(e.Outcomes, string(got.Outcome)) {
		return fmt.Errorf("%s, want %s by one of %v", got, strings.Join(e.Outcomes, " or "), e.Servers)
	}
	if got.Outcome != cluster.Answered {
		return nil
	}
	who := got.Reply.Server
	if !slices.ContainsFunc(e.Servers, func(s netip.AddrPort) bool { return podAt(w.world, s.Addr()) == who }) {
		return fmt.Errorf("answered by %s, want one of %v", who, e.Servers)
	}
	want := e.Source
	if who == p.client {
		want = judge.AsNode
	}
	if saw := sourceOf(w.world, w.clients[p.client], got.Reply.Source, state); saw != want {
		return fmt.Errorf("%s saw %s as the client, want %s", who, saw, want)
	}
	return w.remember(c, p, who)
}

// returningClients draws clients that have already connected to Services with affinity.
func (w *week) returningClients(rng *rand.Rand) (all []pair) {
	for c := range w.contacts {
		all = append(all, pair(c))
	}
	slices.SortFunc(all, func(a, b pair) int { return cmp.Or(a.key.Compare(b.key), strings.Compare(a.client, b.client)) })
	rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:min(len(all), againCheck)]
}

// remember checks that a client with affinity reaches its previous endpoint.
func (w *week) remember(c *judge.Case, p pair, who string) error {
	cl, _ := c.Holder(p.key)
	config := cl.Service.Object.Spec.SessionAffinityConfig
	if config == nil {
		return nil
	}
	before, known := w.contacts[contact(p)]
	w.contacts[contact(p)] = stuck{who, time.Now(), cl.Service.ID(), w.only(cl.Service.ID()).YAML()}
	if timeout := time.Duration(*config.ClientIP.TimeoutSeconds) * time.Second; known && time.Since(before.at) < timeout-time.Second && before.server != who {
		return fmt.Errorf("with an affinity of %s, the client reached %s %s ago, but now %s", timeout, before.server, time.Since(before.at).Round(time.Second), who)
	}
	return nil
}
