//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// proxysLeftovers adds some objects that kube-proxy leaves behind, and a foreign virtual server and address on kube-ipvs0.
func (s *stage) proxysLeftovers(t *testing.T) {
	t.Helper()
	nat := func(chain, spec string) kernel.Leftover {
		return kernel.Leftover{Place: "nft", Family: inet.IPv4, ChainID: kernel.ChainID{Table: "nat", Chain: chain}, Spec: spec}
	}
	s.fake.SetLeftovers(kernel.Leftovers{
		Objects: []kernel.Leftover{
			nat("PREROUTING", `-m comment --comment "kubernetes service portals" -j KUBE-SERVICES`), nat("KUBE-NODEPORTS", ""),
			{Place: kernel.OldSets, Name: "KUBE-CLUSTER-IP"}, {Place: kernel.RulesNFTables, Family: inet.IPv6},
		},
		Kept: []string{"iptables-nft chain nat KUBE-MARK-MASQ stays; another program's rule uses it: -t nat -A CNI-X -j KUBE-MARK-MASQ"},
	})
	at := netip.MustParseAddr("10.96.0.99")
	server := kernel.Server{Key: kernel.ServerKey{Addr: netip.AddrPortFrom(at, 80), Protocol: inet.TCP}, Scheduler: "rr"}
	if err := errors.Join(s.fake.AddAddress(kernel.BoundAddress{Addr: at}), s.fake.AddServer(server)); err != nil {
		t.Fatal(err)
	}
}

func leftoverFlags(words ...string) []string {
	return withFlags(append([]string{"cleanup", "--kube-proxy-leftovers"}, words...)...)
}

// TestRemoveLeftovers: while an agent runs, cleanup removes what kube-proxy has left behind, and lists what it keeps.
func TestRemoveLeftovers(t *testing.T) {
	s := newStage(t)
	s.proxysLeftovers(t)
	before := s.fake.Dump()
	printedForms(t, s, "leftovers-dry-run", 0, leftoverFlags("--dry-run", "--status-socket", s.socket)...)
	left, _ := s.fake.FindLeftovers(t.Context())
	if len(left.Objects) != 4 {
		t.Errorf("--dry-run removed objects; remaining: %v", left.Objects)
	}
	out, notes, status := s.inspect(t, leftoverFlags()...)
	golden(t, "commands/leftovers.text.golden", out)
	golden(t, "commands/leftovers-notes.text.golden", notes)
	if left, _ := s.fake.FindLeftovers(t.Context()); status != 0 || len(left.Objects) > 0 || s.fake.Dump() != before {
		t.Errorf("status %d; left %v\n%s", status, left.Objects, s.fake.Dump())
	}
	if out, _, status := s.inspect(t, leftoverFlags()...); status != 0 || out != "no rules, sets or tables of kube-proxy on this node\n" {
		t.Errorf("second run: status %d, %q", status, out)
	}
}

// TestRemoveLeftoversStops: the kernel keeps a set while a rule uses it. If a rule cannot be deleted, its sets stay for
// the next run.
func TestRemoveLeftoversStops(t *testing.T) {
	s := newStage(t)
	s.proxysLeftovers(t)
	s.fake.FailNext(kernel.KindRules, errInput)
	_, stderr, status := s.inspect(t, leftoverFlags()...)
	left, _ := s.fake.FindLeftovers(t.Context())
	if status != 1 || !strings.Contains(stderr, "run cleanup again") || len(left.Objects) != 3 {
		t.Errorf("status %d, %s; left %v", status, stderr, left.Objects)
	}
}

// TestLeftoversInUse: cleanup refuses to run if kube-proxy might still be using the objects, or if no agent serves the node.
func TestLeftoversInUse(t *testing.T) {
	health := func(readyz int) string {
		mux := http.NewServeMux()
		mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"lastUpdated": "now"}`)) })
		mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(readyz) })
		server := httptest.NewServer(mux)
		t.Cleanup(server.Close)
		return server.URL
	}
	for name, c := range map[string]struct {
		meet func(*stage)
		says string // the refusal; empty if cleanup runs
	}{
		"no agent":            {func(s *stage) { s.socket += "-none" }, "no agent serves this node"},
		"its process":         {func(s *stage) { s.FindProcess = func(string, bool) string { return "77" } }, "process 77"},
		"its health":          {func(s *stage) { s.ProxyHealth = []string{health(http.StatusNotFound)} }, "/healthz"},
		"the agent's health":  {func(s *stage) { s.ProxyHealth = []string{health(http.StatusServiceUnavailable)} }, ""},
		"nobody on its ports": {func(s *stage) { s.ProxyHealth = []string{"http://127.0.0.1:1"} }, ""},
		"its rules": {func(s *stage) {
			rule := []string{"-m", "comment", "--comment", "kubernetes service portals", "-j", "ACCEPT"}
			if err := s.fake.AppendRule(inet.IPv4, kernel.ChainID{Table: "nat", Chain: "KUBE-SERVICES"}, rule...); err != nil {
				t.Fatal(err)
			}
		}, "nat KUBE-SERVICES"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			s.proxysLeftovers(t)
			c.meet(s)
			out, stderr, status := s.inspect(t, leftoverFlags()...)
			left, _ := s.fake.FindLeftovers(t.Context())
			if refused := c.says != ""; refused != (status == 1) || !strings.Contains(stderr, c.says) || refused != (len(left.Objects) == 4) {
				t.Errorf("status %d, %s%s; remaining: %v", status, out, stderr, left.Objects)
			}
			out, _, status = s.inspect(t, leftoverFlags("--dry-run", "-o", "json")...)
			var document struct{ Refused string }
			if err := json.Unmarshal([]byte(out), &document); err != nil || status != 0 || !strings.Contains(document.Refused, c.says) {
				t.Errorf("--dry-run: status %d, %v\n%s", status, err, out)
			}
		})
	}
}

// TestLeftoversAndServices: the two flags are mutually exclusive.
func TestLeftoversAndServices(t *testing.T) {
	if _, stderr, status := newMachine(t).call(t, leftoverFlags("--keep-services")...); status != 2 || !strings.Contains(stderr, "either") {
		t.Errorf("status %d, %s", status, stderr)
	}
}
