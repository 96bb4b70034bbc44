package kubeproxy

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// blind records the outcomes of requests sent while neither program could read the node's addresses.
type blind struct{ nodePort, healthPort [2]string }

// unreadable makes address reads fail, and triggers a read by both programs: kube-proxy reads on every sync, and
// kube-ipvs when an address is added or removed.
func (w *world) unreadable(t *testing.T) blind {
	t.Helper()
	if w.blind != nil {
		return *w.blind
	}
	for _, s := range w.sides() {
		s.node.MustRun(t, "iptables", "-A", "INPUT", "-p", "tcp", "--dport", fmt.Sprint(healthNodePort), "--syn", "-j", "DROP")
		s.fault.hits.Store(0)
		s.fault.on.Store(true)
		s.node.AddAddr(t, "eth0", netip.PrefixFrom(w.extraAddress(s), 24).String())
	}
	w.settle(t, w.theirs)
	for _, s := range w.sides() {
		cluster.Eventually(t, patience, s.name+" reads the node's addresses", func() error {
			if s.fault.hits.Load() < 2 {
				return fmt.Errorf("%d reads", s.fault.hits.Load())
			}
			return nil
		})
	}
	w.blind = &blind{}
	w.blind.nodePort[0], w.blind.nodePort[1] = w.both(func(s *side) string {
		r := s.outside.Probe(cluster.TCP, s.node.At(cluster.V4, plainNodePort), slowly)
		return outcome(r)
	})
	w.blind.healthPort[0], w.blind.healthPort[1] = w.both(func(s *side) string {
		if _, err := s.outside.HTTPGet(fmt.Sprintf("http://%s/", s.node.At(cluster.V4, healthNodePort)), slowly); err != nil {
			return "no answer"
		}
		return "answered"
	})
	t.Logf("%+v", *w.blind)
	for _, s := range w.sides() {
		s.fault.on.Store(false)
		t.Logf("%s: %d requests failed", s.name, s.fault.hits.Load())
	}
	w.settle(t)
	w.seeAgain(t)
	return *w.blind
}

// seeAgain waits until the ports answer, which shows that only the fault closed them.
func (w *world) seeAgain(t *testing.T) {
	t.Helper()
	for _, s := range w.sides() {
		s.outside.Await(t, soon, cluster.TCP, s.node.At(cluster.V4, plainNodePort))
		cluster.Eventually(t, soon, s.name+" answers on the health check port", func() error {
			_, err := s.outside.HTTPGet(fmt.Sprintf("http://%s/", s.node.At(cluster.V4, healthNodePort)), slowly)
			return err
		})
	}
}

// soon limits the wait for something that should already be true.
const soon = time.Minute

func (w *world) extraAddress(s *side) netip.Addr {
	return netip.AddrFrom4([4]byte{192, 168, 50, byte(200 + s.node.Index)})
}

func unreadableNodePorts(t *testing.T, w *world) (ours, theirs string) {
	t.Helper()
	seen := w.unreadable(t).nodePort
	return seen[0], seen[1]
}

func unreadableHealthPorts(t *testing.T, w *world) (ours, theirs string) {
	t.Helper()
	seen := w.unreadable(t).healthPort
	return seen[0], seen[1]
}
