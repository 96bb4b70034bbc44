package judge

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

// TestExpect covers the tables in docs/services.md: which clients get an answer, from which endpoints, and which
// source address the endpoints see.
func TestExpect(t *testing.T) {
	local := strings.ReplaceAll(manifest("web", "10.96.0.5", "198.18.7.1", "Cluster", "10.244.2.2"), "externalTrafficPolicy: Cluster", "externalTrafficPolicy: Local")
	empty := strings.ReplaceAll(manifest("empty", "10.96.0.6", "198.18.7.2", "Cluster", "10.244.2.2"), "[{addresses: [10.244.2.2], nodeName: node-2}]", "[]")
	inside := manifest("inside", "10.96.0.7", "192.168.50.12", "Local", "10.244.2.2")
	c := situation(t, local+strings.ReplaceAll(empty, "30080", "30081")+strings.ReplaceAll(inside, "30080", "30082"))
	const unknown = "unknown"
	for _, want := range []struct{ client, at, what string }{
		{"pod", "10.96.0.5:80", "answered [10.244.2.2:8080] the client"},
		{Host, "10.96.0.5:80", "answered [10.244.2.2:8080] the node"},
		{"client-1", "10.96.0.5:80", "answered [10.244.2.2:8080] the node"},
		{"pod", "198.18.7.1:80", "answered [10.244.2.2:8080] the client"},
		{Host, "198.18.7.1:80", "answered [10.244.2.2:8080] the node"},
		{"client-1", "198.18.7.1:80", "timed out"},
		{"client-1", "192.168.50.11:30080", "timed out"},
		{"client-1", "10.96.0.6:80", "refused"},
		{"pod", "198.18.7.2:80", "refused"},
		{Host, "10.96.0.6:80", "refused, unreachable, timed out, filtered"},
		{"pod", "10.96.0.7:80", "timed out"},
		{"client-1", "192.168.50.11:30082", "answered [10.244.2.2:8080] the node"},
		{"pod", "192.168.50.12:80", unknown}, // another node's address; depends on earlier objects
		{"pod", "10.96.0.9:80", unknown},
	} {
		e, ok := c.Expect(want.client, Key{"TCP", netip.MustParseAddrPort(want.at)})
		got := strings.TrimSuffix(strings.TrimSpace(fmt.Sprint(strings.Join(e.Outcomes, ", "), " ", e.Servers, " ", e.Source)), " []")
		if !ok {
			got = unknown
		}
		if got != want.what {
			t.Errorf("from %s to %s: %q, want %q", want.client, want.at, got, want.what)
		}
	}
}

func TestWrong(t *testing.T) {
	c := situation(t, strings.ReplaceAll(manifest("web", "10.96.0.5", "192.168.50.12", "Cluster", "10.244.2.2"), ", nodePort: 30080", ""))
	bound := "1: x inet 10.96.0.5/32 x\n"
	for table, want := range map[string]string{
		webTable: "",
		"":       "absent, want 10.244.2.2:8080",
		strings.ReplaceAll(webTable, "-w 1", "-w 0"):           "want 10.244.2.2:8080",
		strings.ReplaceAll(webTable, "10.244.2.2", "10.9.9.9"): "want 10.244.2.2:8080",
		webTable + "-A -t 10.96.0.6:80 -s rr\n":                "10.96.0.6:80/TCP that no Service claims",
	} {
		wrong := ""
		for _, w := range c.Wrong(state(t, table, bound)) {
			wrong += w.Text + "\n"
		}
		if (want == "") != (wrong == "") || !strings.Contains(wrong, want) {
			t.Errorf("%s: %q, want %q", table, wrong, want)
		}
	}
	if wrong := c.Wrong(state(t, webTable, bound+"1: x inet 10.96.0.6/32 x\n")); len(wrong) != 1 || !strings.Contains(wrong[0].Text, "bound address 10.96.0.6") {
		t.Errorf("wrong result for an address that no Service claims: %v", wrong)
	}
}
