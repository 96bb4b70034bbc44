package kubeproxy

import (
	"fmt"
	"net/netip"
	"sync"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/conformance"
	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/manifest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

// story runs a case on both nodes and returns the outcomes, worded as in the case.
type story func(t *testing.T, w *world) (ours, theirs string)

var stories = map[string]story{
	"external Local, a pod":                    externalLocalPod,
	"external Local, a process of the node":    externalLocalHost,
	"external Local, a client outside":         externalLocalOutside,
	"internal Local":                           internalLocal,
	"internal Local with a node port":          internalLocalNodePort,
	"another node's address":                   anotherNodesAddress,
	"a ClusterIP port like a node port":        portLikeNodePort,
	"ping":                                     ping,
	"host ports from the first instant":        firstInstant,
	"a source range of one address":            rangeOfOneAddress,
	"a foreign virtual server":                 foreignServer,
	"one-way UDP to zero endpoints":            zeroEndpoints,
	"UDP before the load balancer":             earlySender,
	"mh while an endpoint drains":              drainWithMH,
	"packets outside the window":               outsideTheWindow,
	"two Services claim one address":           contested,
	"unreadable addresses: node ports":         unreadableNodePorts,
	"unreadable addresses: health check ports": unreadableHealthPorts,
	"cleanup": cleanup,
}

func TestContrasts(t *testing.T) {
	labtest.Need(t)
	w := newWorld(t)
	w.findKubeProxy(t)
	w.startAPI(t, w.manifests()...)
	w.startOurs(t)
	w.startTheirs(t)
	for range 2 { // kube-proxy writes virtual servers long before their rules, but finishes each sync before the next one
		w.settle(t)
	}
	for _, c := range conformance.Contrasts {
		t.Run(c.Name, func(t *testing.T) {
			play, ok := stories[c.Name]
			if !ok {
				t.Fatal("no story covers this case")
			}
			ours, theirs := play(t, w)
			c.Check(t, w.version, ours, theirs)
		})
	}
	if len(stories) != len(conformance.Contrasts) {
		t.Errorf("there are %d stories for %d cases", len(stories), len(conformance.Contrasts))
	}
}

func (w *world) both(ask func(s *side) string) (ours, theirs string) {
	var asking sync.WaitGroup
	asking.Go(func() { ours = ask(w.ours) })
	asking.Go(func() { theirs = ask(w.theirs) })
	asking.Wait()
	return ours, theirs
}

// inEachFamily calls ask once for IPv4 and once for IPv6.
func (w *world) inEachFamily(ask func(s *side, f cluster.Family) string) (ours, theirs string) {
	return w.both(func(s *side) string {
		var v4, v6 string
		var asking sync.WaitGroup
		asking.Go(func() { v4 = ask(s, cluster.V4) })
		asking.Go(func() { v6 = ask(s, cluster.V6) })
		asking.Wait()
		if v4 != v6 {
			return fmt.Sprintf("over IPv4: %s; over IPv6: %s", v4, v6)
		}
		return v4
	})
}

// asks makes one request. The outcome includes the source address that the endpoint saw.
func (s *side) asks(from *cluster.Host, p manifest.Port, at string) string {
	r := from.Probe(p.Protocol, at, slowly)
	if r.Outcome != cluster.Answered {
		return outcome(r)
	}
	f := cluster.V4
	if netip.MustParseAddrPort(at).Addr().Is6() {
		f = cluster.V6
	}
	switch r.Reply.Source {
	case s.node.Addr(f):
		return "answered; the endpoint sees the node"
	case from.Addr(f):
		return "answered; the endpoint sees the client"
	}
	return fmt.Sprintf("answered; the endpoint sees %s", r.Reply.Source)
}

func outcome(r cluster.Result) string {
	if r.Outcome == cluster.Timeout {
		return "no answer"
	}
	return string(r.Outcome)
}
