package kubeproxy

import (
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

func externalLocalPod(_ *testing.T, w *world) (ours, theirs string) {
	return w.inEachFamily(func(s *side, f cluster.Family) string {
		return s.asks(s.pod.Host, http, w.externalLocalService().atBalancer(f, http))
	})
}

func externalLocalHost(_ *testing.T, w *world) (ours, theirs string) {
	return w.inEachFamily(func(s *side, f cluster.Family) string {
		return s.asks(s.node.Host, http, w.externalLocalService().atBalancer(f, http))
	})
}

// externalLocalOutside uses UDP: the endpoint knows of a datagram, but not of a connection that never stands.
func externalLocalOutside(_ *testing.T, w *world) (ours, theirs string) {
	return w.inEachFamily(func(s *side, f cluster.Family) string {
		before := w.datagrams.Sources()[s.outside.Addr(f)]
		seen := s.asks(s.outside, dns, w.externalLocalService().atBalancer(f, dns))
		if w.datagrams.Sources()[s.outside.Addr(f)] != before {
			return seen + "; an endpoint on another node is asked, and its answer has the wrong source"
		}
		return seen + "; no endpoint is bothered"
	})
}

func internalLocal(_ *testing.T, w *world) (ours, theirs string) {
	return w.inEachFamily(func(s *side, f cluster.Family) string {
		return s.asks(s.pod.Host, http, w.internalLocalService().at(f, http))
	})
}

func internalLocalNodePort(_ *testing.T, w *world) (ours, theirs string) {
	return w.inEachFamily(func(s *side, f cluster.Family) string {
		return s.asks(s.pod.Host, http, w.internalLocalNodePortService().at(f, http))
	})
}

// anotherNodesAddress asks for a daemon of the neighbor, whose addresses a Service claims.
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
	svc := w.likeService()
	return w.inEachFamily(func(s *side, f cluster.Family) string { return s.asks(s.pod.Host, http, svc.at(f, svc.ports[0])) })
}

func ping(_ *testing.T, w *world) (ours, theirs string) {
	return w.inEachFamily(func(s *side, f cluster.Family) string {
		if _, err := s.pod.Run("ping", "-c1", "-W5", externalIP(f, etpNumber).String()); err != nil {
			return "refused"
		}
		return "answered"
	})
}
