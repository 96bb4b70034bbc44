package doctor

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// Outsider is a client on another machine, with the TCP connections from it that IPVS tracks.
type Outsider struct {
	explain.Question
	// Interface leads to the client.
	Interface string
	// Complete counts the connections that the client has confirmed. HalfOpen counts the others, if their endpoints have complete connections
	// with other clients.
	Complete, HalfOpen int
}

// OutsidersOf counts the connections of clients on other machines. The question of a client is its first half-open connection.
func OutsidersOf(k *explain.Kernel) (all []Outsider) {
	answers := map[netip.AddrPort]bool{}
	for _, c := range k.Connections {
		if explain.Complete(c) {
			answers[c.Destination] = true
		}
	}
	for _, client := range k.Outsiders() {
		o := Outsider{Question: explain.Question{From: client}, Interface: k.Routes[client].Interface}
		for _, c := range k.Connections {
			key, is := serverOf(c)
			switch {
			case c.Client.Addr() != client || !is:
			case explain.Complete(c):
				o.Complete++
			case explain.HalfOpen(c) && answers[c.Destination]:
				if o.HalfOpen++; o.HalfOpen == 1 {
					o.To = key
				}
			}
		}
		all = append(all, o)
	}
	return all
}

// getsNothing reports whether none of a client's connections is complete, although its endpoints respond to other clients.
func (o Outsider) getsNothing() bool { return o.Complete == 0 && o.HalfOpen > 0 }

// HalfOpen returns half-open connections of clients that get no replies.
func HalfOpen(k *explain.Kernel, limit int) (some []explain.Question) {
	for _, o := range OutsidersOf(k) {
		if o.getsNothing() && len(some) < limit {
			some = append(some, o.Question)
		}
	}
	return some
}

func serverOf(c kernel.Connection) (key kernel.ServerKey, is bool) {
	return kernel.ServerKey{Addr: c.Virtual, Protocol: inet.TCP}, strings.EqualFold(c.Protocol, tcp) && c.Client.Port() != 0
}

// checkReplies finds clients whose connections all stay half open, and to whom packets take another way than by the node's default route. It
// does not report clients behind an interface with other, complete connections.
func checkReplies(f Facts) []finding.Finding {
	var evidence []string
	halfOpen := 0
	for _, o := range f.Outsiders {
		mixed := slices.ContainsFunc(f.Outsiders, func(other Outsider) bool { return other.Interface == o.Interface && other.Complete > 0 })
		if !o.getsNothing() || mixed || !f.leadsElsewhere(o.Interface) {
			continue
		}
		halfOpen += o.HalfOpen
		evidence = append(evidence, fmt.Sprintf("%s: %s, none complete; the route to this client leads to %s", o.From, number(o.HalfOpen, "half-open connection"), o.Interface))
	}
	if halfOpen < 2 {
		return nil
	}
	return finding.One(finding.Warning, "replies to clients",
		"leave by another interface than that of the default route and do not arrive; the clients' connections stay half open", examples(evidence),
		"change the routes or routing rules to these clients (`ip route get ADDRESS`): a VPN or another program may have added routes for more networks than it serves")
}

// leadsElsewhere reports whether an interface leads to other machines, but is neither an interface of the node's own default route nor a part of the
// pod network.
func (f *Facts) leadsElsewhere(name string) bool {
	i, known := f.named(name)
	if !known || !i.Up || i.Name == kernel.Device || slices.Contains(f.Uplinks, name) && !slices.Contains(f.Halves, name) || i.Container || overlays[i.Kind] {
		return false
	}
	for _, plugin := range plugins {
		if strings.Contains(name, plugin) {
			return false
		}
	}
	return f.leadsOut(i) || slices.Contains(elsewhere, i.Kind)
}

// plugins are parts of the names of interfaces between pods on different nodes. elsewhere are the kinds of interfaces that may lead to other
// networks, in addition to hardware.
var (
	plugins   = []string{"cali", "cilium", "flannel", "kilo", "antrea", "ovn", "weave"}
	elsewhere = []string{"tun", "dummy", "wireguard", "ppp", "gre", "gretap"}
)
