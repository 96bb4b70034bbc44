package explain_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-ipvs/kube-ipvs/internal/explain"
)

func TestPrint(t *testing.T) {
	e := explain.Explanation{
		Address: netip.MustParseAddrPort("10.96.0.1:80"), Protocol: "tcp", From: "198.51.100.7", Service: "default/web", Kind: "ClusterIP",
		Verdict: explain.Depends, Reasons: []string{"the set KIPVS-4-HAIRPIN is missing"},
		Steps: []explain.Step{
			{At: "address", Object: "ip addr 10.96.0.1/32 dev kube-ipvs0", Message: "local to this node", Verdict: explain.Passes},
			{At: "filter INPUT", Object: "-A INPUT -i eth9 -j DROP", Message: "dropped", Verdict: explain.Depends},
			{At: "filter OUTPUT", Object: "-A OUTPUT -j DROP", Message: "dropped", Verdict: explain.Stops},
		},
		Endpoints: []explain.Endpoint{
			{Address: netip.MustParseAddrPort("10.244.0.1:8080"), Pod: "default/web-1", Node: "node-1", Weight: 3, Source: "the client"},
			{Address: netip.MustParseAddrPort("10.244.0.2:8080"), Weight: 1, Source: "this node"},
		},
	}
	const want = `10.96.0.1:80/tcp (ClusterIP of Service default/web) from 198.51.100.7: works for some clients only
  ! the set KIPVS-4-HAIRPIN is missing

Path of the first packet of a new connection:
  1. address: local to this node
       ip addr 10.96.0.1/32 dev kube-ipvs0
  2. filter INPUT: DEPENDS: dropped
       -A INPUT -i eth9 -j DROP
  3. filter OUTPUT: STOPS: dropped
       -A OUTPUT -j DROP

Eligible endpoints:
  10.244.0.1:8080 weight 3, pod default/web-1, node node-1; source address: the client
  10.244.0.2:8080 weight 1; source address: this node
`
	if d := cmp.Diff(want, steps(e)); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

// TestPrintShort: without -v, only the deciding steps follow the verdict, and the output for a healthy Service with
// many frontends fits on a screen.
func TestPrintShort(t *testing.T) {
	var endpoints []explain.Endpoint
	for i := range 7 {
		addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 0, byte(i)}), 80)
		endpoints = append(endpoints, explain.Endpoint{Address: addr, Weight: 1, Source: "the client"})
	}
	healthy := func(at string) explain.Explanation {
		return explain.Explanation{
			Address: netip.MustParseAddrPort(at), Protocol: "tcp", Service: "default/web", Kind: "ClusterIP", Verdict: explain.Passes,
			Steps: []explain.Step{
				{At: "address", Object: "ip addr", Message: "local", Verdict: explain.Passes},
				{At: "ipvs", Object: "ipvsadm -A -t " + at + " -s rr", Message: "scheduler rr selects the endpoint", Verdict: explain.Passes},
				{At: "ipvs", Object: "ipvsadm -a", Message: "eligible", Verdict: explain.Passes},
			}, Endpoints: endpoints,
		}
	}
	blocked := healthy("10.96.0.2:80")
	blocked.Verdict, blocked.Reasons, blocked.Endpoints = explain.Stops, []string{"stopped"}, nil
	blocked.Steps[2] = explain.Step{At: "filter INPUT", Object: "-A INPUT -j DROP", Message: "dropped", Verdict: explain.Stops}
	var b strings.Builder
	explain.Print(&b, []explain.Explanation{healthy("10.96.0.1:80"), healthy("10.96.0.1:81"), blocked}, false)
	const want = `10.96.0.1:80/tcp (ClusterIP of Service default/web): works
  2. ipvs: scheduler rr selects the endpoint (ipvsadm -A -t 10.96.0.1:80 -s rr)
  -> 10.244.0.0:80 weight 1; source address: the client
  -> 10.244.0.1:80 weight 1; source address: the client
  -> 10.244.0.2:80 weight 1; source address: the client
  -> 10.244.0.3:80 weight 1; source address: the client
  -> 10.244.0.4:80 weight 1; source address: the client
  -> and 2 more
10.96.0.1:81/tcp (ClusterIP of Service default/web): works
  2. ipvs: scheduler rr selects the endpoint (ipvsadm -A -t 10.96.0.1:81 -s rr)
  -> the same endpoints
10.96.0.2:80/tcp (ClusterIP of Service default/web): does not work
  ! stopped
  3. filter INPUT: STOPS: dropped (-A INPUT -j DROP)

Use -v to see all steps.
`
	if d := cmp.Diff(want, b.String()); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	all := []explain.Explanation{}
	for i := range 5 {
		all = append(all, healthy(fmt.Sprintf("10.96.0.%d:80", i)))
	}
	b.Reset()
	explain.Print(&b, all, false)
	if n := strings.Count(b.String(), "\n"); n >= 25 {
		t.Errorf("got %d lines for a healthy Service with 5 frontends:\n%s", n, &b)
	}
}

// TestPrintForeignText: other people choose the names of pods and the comments of rules. None of them can send escape sequences to the terminal, or
// write a line of its own.
func TestPrintForeignText(t *testing.T) {
	const evil = "x\x1b]0;owned\a\u202e\r\n  -> 10.0.0.1:80"
	e := explain.Explanation{
		Address: netip.MustParseAddrPort("10.96.0.1:80"), Protocol: "tcp", From: evil, Service: evil, Owner: evil, Kind: evil, Connection: "198.51.100.7:4711",
		Verdict: explain.Stops, Reasons: []string{evil},
		Steps:     []explain.Step{{At: evil, Object: evil + " ", Message: evil, Verdict: explain.Stops}},
		Endpoints: []explain.Endpoint{{Address: netip.MustParseAddrPort("10.244.0.1:8080"), Pod: evil, Node: evil, Source: evil}},
	}
	for all, lines := range map[bool]int{true: 9, false: 6} {
		var b strings.Builder
		explain.Print(&b, []explain.Explanation{e}, all)
		text := b.String()
		if strings.ContainsAny(text, "\x1b\a\r\u202e") || strings.Count(text, "\n") != lines || strings.Count(text, "x\uFFFD]0;owned") < 6 {
			t.Errorf("all %v: want %d printable lines, got %q", all, lines, text)
		}
	}
}

// TestVerdicts: "depends on the client" and "cannot be evaluated" are different verdicts.
func TestVerdicts(t *testing.T) {
	for spec, want := range map[string]map[string]explain.Verdict{
		"-s 198.51.100.0/24 -j DROP":                        {"": explain.Depends, outside: explain.Stops, pod: explain.Passes},
		"-m string --string attack -j DROP":                 {"": explain.Unclear, outside: explain.Unclear},
		"-s 198.51.100.0/24 -m string --string xyz -j DROP": {"": explain.Unclear, outside: explain.Unclear, pod: explain.Passes},
		"-m set --match-set theirs src -j DROP":             {"": explain.Unclear, outside: explain.Unclear},
	} {
		for from, verdict := range want {
			w := newWorld(t, web())
			w.insert("filter", "INPUT", spec)
			if e := w.ask(clusterIPHTTP, from); e.Verdict != verdict {
				t.Errorf("%s from %q: %s, want %s", spec, from, e.Verdict, verdict)
			}
		}
	}
	w := newWorld(t, web())
	w.insert("filter", "OUTPUT", "-d "+otherPod+" -j DROP")
	if e := w.ask(clusterIPHTTP, outside); e.Verdict != explain.Partly || len(e.Endpoints) != 1 {
		t.Errorf("one of two endpoints is blocked, but explain reports\n%s", steps(e))
	}
}
