package explain

import (
	"net/netip"
	"regexp"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// cost counts the rules and set lookups that the kernel evaluates for one packet.
type cost struct{ rules, lookups int }

// counter follows a packet through compiled rules as the kernel does: it compares a rule's addresses, interfaces and
// protocol before the other matches, and skips the rest of a rule after the first failed match.
type counter struct {
	k     *Kernel
	rules map[kernel.ChainID][]kernel.Rule
	cost  cost
	// later is true if conntrack knows the packet's connection.
	later bool
}

func newCounter(k *Kernel, ruleset kernel.Ruleset) *counter {
	c := &counter{k: k, rules: map[kernel.ChainID][]kernel.Rule{}}
	for _, chain := range ruleset.Chains {
		c.rules[chain.ChainID] = chain.Rules
	}
	for _, j := range ruleset.Jumps {
		c.rules[j.ChainID] = append(c.rules[j.ChainID], j.Rule)
	}
	return c
}

func (c *counter) chain(p *packet, id kernel.ChainID) end {
	for _, r := range c.rules[id] {
		c.cost.rules++
		if !c.matches(p, r) {
			continue
		}
		switch v := r.Verdict.(type) {
		case kernel.JumpTo:
			if e := c.chain(p, kernel.ChainID{Table: id.Table, Chain: string(v)}); e != continues {
				return e
			}
		case kernel.Final:
			return map[kernel.Final]end{kernel.Accept: accepted, kernel.Drop: stopped, kernel.Return: continues}[v]
		case kernel.Masquerade:
			return accepted
		case kernel.Reject:
			return stopped
		case kernel.SetMark, kernel.FlipMark:
			p.mark ^= 0x4000
		}
	}
	return continues
}

func (c *counter) matches(p *packet, r kernel.Rule) bool {
	inHeader := func(m kernel.Condition) bool { return regexp.MustCompile(`^-\w `).MatchString(kernel.ConditionText(m)) }
	for _, header := range []bool{true, false} {
		for _, m := range r.Conditions {
			if inHeader(m) != header {
				continue
			}
			if _, isLookup := m.(kernel.InSet); isLookup {
				c.cost.lookups++
			}
			if matches(m, c.k, p, place{arrives: true, leaves: true}) != yes {
				return false
			}
		}
	}
	return true
}

// path follows a packet to its endpoint, if the packet arrives. All packets that IPVS sends to an endpoint on another host pass OUTPUT afterwards,
// even those that the node sends, which IPVS translates there.
func (c *counter) path(p *packet, endpoint string) (cost, bool) {
	before := []kernel.ChainID{{Table: "nat", Chain: "PREROUTING"}, {Table: "mangle", Chain: "INPUT"}, {Table: "filter", Chain: "INPUT"}}
	behind := []kernel.ChainID{{Table: "mangle", Chain: "OUTPUT"}, {Table: "filter", Chain: "OUTPUT"}, {Table: "nat", Chain: "POSTROUTING"}}
	if p.sent {
		before = []kernel.ChainID{{Table: "mangle", Chain: "OUTPUT"}, {Table: "nat", Chain: "OUTPUT"}}
		if endpoint == p.to.String() { // not balanced
			behind = behind[1:]
		}
	}
	if !c.hooks(p, before) {
		return c.cost, false
	}
	if endpoint != "" {
		p.to = netip.MustParseAddrPort(endpoint)
		return c.cost, c.hooks(p, behind)
	}
	return c.cost, true
}

func (c *counter) hooks(p *packet, hooks []kernel.ChainID) bool {
	for _, h := range hooks {
		first := p.tracking == trackedNew && !c.later // only the first packet passes through table nat
		if (h.Table != "nat" || first) && c.chain(p, h) == stopped {
			return false
		}
	}
	return true
}

// everyFrontend returns Services with each kind of frontend and each guard.
func everyFrontend() map[model.ServiceID]*model.Service {
	at := func(s *model.Service, addr string) *model.Service {
		s.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr(addr)}
		return s
	}
	web := at(compiletest.Service("web", "10.96.0.1", "10.244.9.9"), "203.0.113.1")
	web.ExternalIPs, web.Ports[0].NodePort = []netip.Addr{netip.MustParseAddr("203.0.113.2")}, 30080
	ranged := at(compiletest.Service("ranged", "10.96.0.2", "10.244.9.9"), "203.0.113.3")
	ranged.SourceRanges = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
	far := at(compiletest.Service("far", "10.96.0.3", "10.244.9.9"), "203.0.113.4")
	far.ExternalLocal, far.InternalLocal, far.Slices[0].Endpoints[0].Node = true, true, "node-b"
	empty := compiletest.Service("empty", "10.96.0.4")
	empty.Ports[0].NodePort = 30081
	all := map[model.ServiceID]*model.Service{}
	for _, s := range []*model.Service{web, ranged, far, empty} {
		all[s.ID] = s
	}
	return all
}

// kernelOf returns a kernel in the state that the Services require.
func kernelOf(services map[model.ServiceID]*model.Service, node string) *Kernel {
	w := compiletest.Cluster(compiletest.Config(), services, compiletest.At(node)).Want()
	state := &kernel.State{
		Sets: map[string]kernel.Set{}, Members: map[string]map[kernel.Element]struct{}{}, Addresses: map[netip.Addr]kernel.Binding{},
	}
	for _, set := range w.Base.Sets {
		state.Sets[set.Name], state.Members[set.Name] = set.Set, map[kernel.Element]struct{}{}
	}
	for m := range w.Members {
		state.Members[m.Set][m.Element] = struct{}{}
	}
	for a := range w.Addresses {
		state.Addresses[a] = kernel.OnDevice
	}
	return &Kernel{State: state, NodeAddresses: []netip.Addr{netip.MustParseAddr(node)}}
}

// TestGoldenNumbers counts the rules and lookups for each kind of packet. A higher number slows down every connection.
// A lookup costs about 800 instructions with iptables.
func TestGoldenNumbers(t *testing.T) {
	const node, pod, outside, endpoint, stops = "192.0.2.1", "10.244.3.3", "198.51.100.7", "10.244.9.9:8080", ""
	const unanswered = "a later packet of an unanswered flow"
	k := kernelOf(everyFrontend(), node)
	rules := compile.Base(compiletest.Config()).Rulesets[0]
	for _, c := range []struct {
		name, from, to, endpoint, tracking string
		want                               cost
	}{
		{"pod to ClusterIP", pod, "10.96.0.1:80", endpoint, trackedNew, cost{11, 5}},
		{"outside to ClusterIP", outside, "10.96.0.1:80", endpoint, trackedNew, cost{16, 5}},
		{"node to ClusterIP", node, "10.96.0.1:80", endpoint, trackedNew, cost{16, 6}},
		{"pod to node port", pod, node + ":30080", endpoint, trackedNew, cost{17, 9}},
		{"outside to node port", outside, node + ":30080", endpoint, trackedNew, cost{17, 9}},
		{"outside to load balancer", outside, "203.0.113.1:80", endpoint, trackedNew, cost{17, 9}},
		{"outside to external IP", outside, "203.0.113.2:80", endpoint, trackedNew, cost{17, 9}},
		{"outside to load balancer, in a source range", outside, "203.0.113.3:80", endpoint, trackedNew, cost{18, 11}},
		{"outside to load balancer, in no source range", "192.0.2.9", "203.0.113.3:80", stops, trackedNew, cost{7, 6}},
		{"pod to load balancer, policy Local, endpoint on another node", pod, "203.0.113.4:80", endpoint, trackedNew, cost{16, 11}},
		{"outside to load balancer, policy Local, endpoint on another node", outside, "203.0.113.4:80", stops, trackedNew, cost{12, 8}},
		{"pod to ClusterIP, policy Local, endpoint on another node", pod, "10.96.0.3:80", stops, trackedNew, cost{11, 8}},
		{"outside to node port without endpoints", outside, node + ":30081", stops, trackedNew, cost{16, 10}},
		{"pod to ClusterIP without endpoints", pod, "10.96.0.4:80", stops, trackedNew, cost{15, 9}},
		{"outside to a daemon of the node", outside, node + ":22", "", trackedNew, cost{12, 9}},
		{"node to another host", node, "198.51.100.7:443", "198.51.100.7:443", trackedNew, cost{12, 8}},
		{"pod to ClusterIP, unanswered", pod, "10.96.0.1:80", endpoint, unanswered, cost{5, 3}},
		{"outside to node port, unanswered", outside, node + ":30080", endpoint, unanswered, cost{7, 5}},
		{"pod to ClusterIP, established", pod, "10.96.0.1:80", endpoint, established, cost{3, 0}},
		{"outside to node port, established", outside, node + ":30080", endpoint, established, cost{3, 0}},
		{"node to ClusterIP, established", node, "10.96.0.1:80", endpoint, established, cost{2, 0}},
		{"outside to a daemon of the node, established", outside, node + ":22", "", established, cost{2, 0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPacket(k, Question{
				From: netip.MustParseAddr(c.from), To: kernel.ServerKey{Addr: netip.MustParseAddrPort(c.to), Protocol: inet.TCP},
			})
			p.tracking = c.tracking
			counter := newCounter(k, rules)
			if c.tracking == unanswered { // conntrack calls it new until a reply arrives
				p.tracking, counter.later = trackedNew, true
			}
			got, arrives := counter.path(p, c.endpoint)
			if got != c.want {
				t.Errorf("got %d rules and %d lookups, want %d and %d", got.rules, got.lookups, c.want.rules, c.want.lookups)
			}
			if mayArrive := c.endpoint != stops || c.to == node+":22"; arrives != mayArrive {
				t.Errorf("arrives: %v, want %v", arrives, mayArrive)
			}
		})
	}
}
