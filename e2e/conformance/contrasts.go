package conformance

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/record"
)

// Contrast is a case in which kube-proxy's ipvs mode misbehaves, or was reported to misbehave. A story runs it with
// kube-proxy and with kube-ipvs.
type Contrast struct {
	Name   string // name of the story in e2e/stories/kubeproxy
	Title  string
	Issues []int // in kubernetes/kubernetes
	// Ours and Theirs are the expected outcomes with kube-ipvs and with kube-proxy.
	Ours, Theirs string
	// Right explains why kube-proxy is correct, if it is.
	Right string
}

// Contrasts lists the cases in the order of execution. The first ones change nothing, and the last one stops both
// programs.
var Contrasts = []Contrast{
	{Name: "external Local, a pod", Issues: []int{75262, 92857},
		Title:  "`externalTrafficPolicy: Local`, no endpoint on the node: a pod on the node connects to the load balancer's address",
		Ours:   "answered; the endpoint sees the client",
		Theirs: "answered; the endpoint sees the client",
		Right:  "kube-proxy fixed this for pods only"},
	{Name: "external Local, a process of the node", Issues: []int{93456},
		Title:  "`externalTrafficPolicy: Local`, no endpoint on the node: a process on the node, or a pod on the host network, connects to the load balancer's address",
		Ours:   "answered; the endpoint sees the node",
		Theirs: "no answer"},
	{Name: "external Local, a client outside", Issues: []int{93456},
		Title:  "`externalTrafficPolicy: Local`, no endpoint on the node: a client outside the cluster sends packets to this node",
		Ours:   "no answer; no endpoint gets the packet",
		Theirs: "no answer; an endpoint on another node replies with the wrong source address"},
	{Name: "internal Local", Title: "`internalTrafficPolicy: Local`, no endpoint on the node, a Service of type ClusterIP",
		Ours:   "no answer",
		Theirs: "refused"},
	{Name: "internal Local with a node port", Title: "`internalTrafficPolicy: Local`, no endpoint on the node, a Service that also has a node port",
		Ours:   "no answer",
		Theirs: "answered; the endpoint sees the client"},
	{Name: "another node's address", Issues: []int{104679, 93175, 75290, 127410},
		Title:  "a Service claims another node's address as an external IP (IPv4) or load balancer IP (IPv6): a client connects to a daemon on that node",
		Ours:   "answered by that node",
		Theirs: "refused"},
	{Name: "a ClusterIP port like a node port", Issues: []int{132068},
		Title:  "a pod connects to a ClusterIP port whose number is another Service's node port",
		Ours:   "answered; the endpoint sees the client",
		Theirs: "answered; the endpoint sees the node"},
	{Name: "ping", Issues: []int{117621},
		Title:  "ping to a load balancer's address",
		Ours:   "answered",
		Theirs: "refused"},
	{Name: "host ports from the first instant", Issues: []int{72236},
		Title:  "a daemon on the node listens on every address; a Service gets a new address",
		Ours:   "the daemon never answers there",
		Theirs: "the daemon answers there until the rules are in place"},
	{Name: "a source range of one address",
		Title:  "`loadBalancerSourceRanges` lists the client as a /32 or /128; other Services change",
		Ours:   "no request is lost",
		Theirs: "requests are lost"},
	{Name: "a foreign virtual server", Issues: []int{59507},
		Title:  "another program has a virtual server on the node; a Service changes",
		Ours:   "it stays",
		Theirs: "it is deleted"},
	{Name: "one-way UDP to zero endpoints", Issues: []int{139628},
		Title:  "the last endpoint of a UDP Service disappears while clients send",
		Ours:   "the removed endpoint gets nothing more",
		Theirs: "the removed endpoint gets nothing more",
		Right:  "IPVS itself ends the flow; kube-proxy's other modes fail"},
	{Name: "UDP before the load balancer", Issues: []int{105192, 108065},
		Title:  "a UDP client outside the cluster sends to a load balancer's address before the Service's status lists it",
		Ours:   "the endpoint sees the node, and its replies return",
		Theirs: "the endpoint sees the client, which rejects the replies"},
	{Name: "mh while an endpoint drains", Issues: []int{139497},
		Title:  "new connections with scheduler `mh`, while one of two endpoints drains",
		Ours:   "all answered",
		Theirs: "some refused"},
	{Name: "packets outside the window", Issues: []int{74839},
		Title:  "an endpoint sends packets that conntrack considers invalid",
		Ours:   "the connection continues, no reset is sent",
		Theirs: "the connection continues, no reset is sent",
		Right:  "IPVS translates such packets from its own connection table; kube-proxy's other modes need a rule"},
	{Name: "two Services claim one address",
		Title:  "two Services claim one external IP and port",
		Ours:   "the older one gets it",
		Theirs: "it alternates between them"},
	{Name: "unreadable addresses: node ports",
		Title:  "a node port, while reading the node's addresses fails (injected fault)",
		Ours:   "answered",
		Theirs: "refused"},
	{Name: "unreadable addresses: health check ports",
		Title:  "a health check port that the host's firewall closes by default, while reading the node's addresses fails",
		Ours:   "answered",
		Theirs: "no answer"},
	{Name: "cleanup", Issues: []int{109286, 96034},
		Title:  "`cleanup` with another program's virtual server on the node",
		Ours:   "nothing of its own is left; the other virtual server stays",
		Theirs: "it fails; IPv6 sets are left; the other virtual server is deleted"},
}

// Check fails the test unless both outcomes match the case. against is kube-proxy's name and version.
func (c Contrast) Check(t testing.TB, against, ours, theirs string) {
	t.Helper()
	t.Attr(record.Figure, against)
	if ours != c.Ours {
		t.Errorf("kube-ipvs: %s\nwant: %s", ours, c.Ours)
	}
	if theirs != c.Theirs {
		t.Errorf("%s: %s\nwant: %s\n(if kube-proxy has changed, update the case; otherwise the story no longer shows the difference)", against, theirs, c.Theirs)
	}
}

// contrastOf returns the case of a test, or nil.
func contrastOf(t record.Test) *Contrast {
	for i := range Contrasts {
		if t.Test == "TestContrasts/"+strings.ReplaceAll(Contrasts[i].Name, " ", "_") {
			return &Contrasts[i]
		}
	}
	return nil
}

// contrastTable renders the comparison with kube-proxy.
func contrastTable(results []record.Test) string {
	var b strings.Builder
	b.WriteString(`
## Beside kube-proxy

In these cases, kube-proxy's ipvs mode is known, or was reported, to be wrong. Each case is one
story in [e2e/stories/kubeproxy](../e2e/stories/kubeproxy), which runs on two nodes of one cluster:
one runs kube-ipvs, the other the real kube-proxy. The columns show the outcome that the story
expects on each node; it fails if either one differs.

| case | kube-ipvs | kube-proxy | reported as | seen on |
|---|---|---|---|---|
`)
	for i, c := range Contrasts {
		var on []string
		for _, r := range results {
			if contrastOf(r) != &Contrasts[i] {
				continue
			}
			seen := strings.Join(append([]string{r.Where()}, r.Figures...), ", ")
			if r.Status != "PASS" {
				seen = "**not so** on " + seen
			}
			on = append(on, seen)
		}
		if len(on) == 0 {
			on = []string{"not run yet"}
		}
		theirs := c.Theirs
		if c.Right != "" {
			theirs += " (" + c.Right + ")"
		}
		var issues []string
		for _, n := range c.Issues {
			issues = append(issues, fmt.Sprintf("[#%d](https://github.com/kubernetes/kubernetes/issues/%d)", n, n))
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", c.Title, c.Ours, theirs, strings.Join(issues, " "), strings.Join(on, "<br>"))
	}
	return b.String()
}
