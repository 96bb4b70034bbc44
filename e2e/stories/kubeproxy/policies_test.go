package kubeproxy

import (
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

func externalLocalPod(_ *testing.T, w *world) (ours, theirs string) {
	return w.inEachFamily(func(s *side, f cluster.Family) string {
		return s.asks(s.pod.Host, http, w.services["etp"].AtBalancer(f, http))
	})
}

func externalLocalHost(_ *testing.T, w *world) (ours, theirs string) {
	return w.inEachFamily(func(s *side, f cluster.Family) string {
		return s.asks(s.node.Host, http, w.services["etp"].AtBalancer(f, http))
	})
}

// externalLocalOutside uses UDP, because an endpoint can count a datagram, but not an unestablished connection.
func externalLocalOutside(_ *testing.T, w *world) (ours, theirs string) {
	return w.inEachFamily(func(s *side, f cluster.Family) string {
		before := w.datagrams.Sources()[s.outside.Addr(f)]
		seen := s.asks(s.outside, dns, w.services["etp"].AtBalancer(f, dns))
		if w.datagrams.Sources()[s.outside.Addr(f)] != before {
			return seen + "; an endpoint on another node replies with the wrong source address"
		}
		return seen + "; no endpoint gets the packet"
	})
}

func internalLocal(_ *testing.T, w *world) (ours, theirs string) {
	return w.inEachFamily(func(s *side, f cluster.Family) string {
		return s.asks(s.pod.Host, http, w.services["itp"].At(f, http))
	})
}

func internalLocalNodePort(_ *testing.T, w *world) (ours, theirs string) {
	return w.inEachFamily(func(s *side, f cluster.Family) string {
		return s.asks(s.pod.Host, http, w.services["itp-node-port"].At(f, http))
	})
}

// A Service claims the neighbor's addresses.
func anotherNodesAddress(_ *testing.T, w *world) (ours, theirs string) {
	return w.inEachFamily(func(s *side, f cluster.Family) string {
		r := s.pod.Probe(cluster.TCP, w.neighbor.At(f, daemonPort), slowly)
		switch {
		case r.Outcome != cluster.Answered:
			return outcome(r)
		case r.Reply.Server != w.neighbor.Name:
			return "answered by " + r.Reply.Server
		}
		return "answered by that node"
	})
}

func portLikeNodePort(_ *testing.T, w *world) (ours, theirs string) {
	svc := w.services["like-node-port"]
	return w.inEachFamily(func(s *side, f cluster.Family) string { return s.asks(s.pod.Host, http, svc.At(f, svc.Ports()[0])) })
}

func ping(_ *testing.T, w *world) (ours, theirs string) {
	return w.inEachFamily(func(s *side, f cluster.Family) string {
		if _, err := s.pod.Run("ping", "-c1", "-W5", w.services["etp"].Balancer()[map[cluster.Family]int{cluster.V4: 0, cluster.V6: 1}[f]]); err != nil {
			return "refused"
		}
		return "answered"
	})
}
