package inspect

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/internal/explain"
)

type explanations struct {
	Items []explain.Explanation `json:"items"`
}

// TestExplainPredictsPackets checks that a client's packets reach exactly the endpoints that explain predicts.
func TestExplainPredictsPackets(t *testing.T) {
	s := newStage(t)
	client, here, outside, node := s.client.Host, s.here.Host, s.outside, s.node.Host
	for _, c := range []struct {
		service string
		from    []*cluster.Host
	}{
		{"plain", []*cluster.Host{client, here, outside, node}}, // the pod "here" can reach itself
		{"sticky", []*cluster.Host{client}},
		{"empty", []*cluster.Host{client, node}},
		{"local", []*cluster.Host{client, outside}},
		{"ranged", []*cluster.Host{client, outside}},
		{"far", []*cluster.Host{client, outside}},
		{"weighted", []*cluster.Host{outside}},
		{"plain6", []*cluster.Host{client, here, outside, node}},
		{"sticky6", []*cluster.Host{client}},
		{"local6", []*cluster.Host{client, outside}},
		{"far6", []*cluster.Host{client, outside}},
	} {
		for _, from := range c.from {
			t.Run(c.service+" from "+from.Name, func(t *testing.T) {
				at := clientAddr(from, c.service)
				for _, e := range runJSON[explanations](t, s, "explain", "default/"+c.service, "--from", at.String()).Items {
					compareWithReality(t, s, e, from, at)
				}
			})
		}
	}
}

func clientAddr(from *cluster.Host, service string) netip.Addr {
	if strings.HasSuffix(service, "6") {
		return from.V6
	}
	return from.V4
}

func request(t *testing.T, e explain.Explanation, from *cluster.Host, at netip.Addr) cluster.Reply {
	t.Helper()
	return from.Get(t, cluster.TCP, e.Address.String(), cluster.FromAddr(at), cluster.Within(10*time.Second))
}

func compareWithReality(t *testing.T, s *stage, e explain.Explanation, from *cluster.Host, at netip.Addr) {
	t.Helper()
	if e.Verdict == explain.Stops {
		if got := from.Probe(cluster.TCP, e.Address.String(), cluster.FromAddr(at), cluster.Within(2*time.Second)); got.Outcome == cluster.Answered {
			t.Errorf("explain predicts that packets stop (%v), but the request was %s", e.Reasons, got)
		}
		return
	}
	if e.Verdict != explain.Passes {
		t.Fatalf("explain's verdict for a single client address is %s, because of %v", e.Verdict, e.Reasons)
	}
	predicted, sources := []string{}, map[string]string{}
	for _, o := range e.Endpoints {
		predicted = append(predicted, o.Pod)
		sources[o.Pod] = o.Source
	}
	reached := map[string]bool{}
	for range 3 * len(predicted) { // round robin reaches every endpoint
		got := request(t, e, from, at)
		pod := "default/" + got.Server
		reached[pod] = true
		if !isSource(s, sources[pod], from, at, got.Source) {
			t.Errorf("%s: %s saw the source %s, explain predicts %s", e.Address, pod, got.Source, sources[pod])
		}
	}
	if e.Service == "default/sticky" || e.Service == "default/sticky6" {
		// Any endpoint may answer the first request, but the same endpoint must answer all later requests.
		predicted = []string{}
		for _, o := range runJSON[explanations](t, s, "explain", e.Service, "--from", at.String()).Items[0].Endpoints {
			predicted = append(predicted, o.Pod)
		}
		if len(predicted) != 1 {
			t.Errorf("explain predicts %v for a client with an affinity entry, want one endpoint", predicted)
		}
	}
	slices.Sort(predicted)
	if d := cmp.Diff(predicted, slices.Sorted(maps.Keys(reached))); d != "" {
		t.Errorf("%s: endpoints (-explain +connections):\n%s", e.Address, d)
	}
}

// isSource reports whether the endpoint saw the predicted source.
func isSource(s *stage, says string, client *cluster.Host, at, got netip.Addr) bool {
	if says == "the client" {
		return got == at
	}
	return says == "this node" && (client == s.node.Host || got != at)
}
