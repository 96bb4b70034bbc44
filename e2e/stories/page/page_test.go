// Package page tests the page of the command ui in a real browser, with data from a node that has hostile names. e2e/stories/inspect
// tests the data that a real agent returns.
package page

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/browser"
	"github.com/kube-ipvs/kube-ipvs/internal/doctor"
	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/ui"
	"github.com/kube-ipvs/kube-ipvs/internal/ui/node"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

const hostile = `<img src=x onerror="document.title='owned'">`

// services returns Services with three endpoints each. The second Service has a hostile reason and a draining endpoint.
func services() (all []view.Service) {
	weight := uint32(1)
	for i := range 150 {
		s := view.Service{Namespace: "shop", Name: fmt.Sprintf("service-%03d", i), Problems: []string{}}
		f := view.Frontend{Port: "http", Kind: view.ClusterIP, Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 0, byte(i)}), 80), Protocol: "tcp", State: view.Served,
			Policy: "Cluster", Scheduler: "rr", Settings: []view.Setting{}, SetEntries: []view.SetEntry{}}
		for e := range 3 {
			f.Endpoints = append(f.Endpoints, view.Endpoint{Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(e), byte(i)}), 8080),
				Pod:  fmt.Sprintf("service-%03d-%d", i, e),
				Node: fmt.Sprintf("node-%d", e), State: view.Ready, Weight: &weight, Connections: &view.Connections{Active: uint64(i * e)}})
		}
		f.Connections = &view.Connections{Active: uint64(3 * i)}
		if i == 1 {
			f.State, f.Reason, f.Endpoints[2].State = view.Conflict, hostile, view.Draining
			s.Problems = append(s.Problems, "Service shop/service-001: "+hostile)
		}
		s.Frontends = append(s.Frontends, f)
		all = append(all, s)
	}
	return all
}

func viewOf(now time.Time) *view.View {
	v := &view.View{Time: now, Agent: view.Agent{Synced: true, LastSync: &view.Sync{Started: now, Seconds: 0.0008, Changes: 3}, Drift: 1,
		Drifts: []view.Drift{{Part: "ipvs", Kind: "missing", Count: 1, Audits: 1, First: now, Last: now, What: []string{hostile}}}},
		Node:    view.Node{Name: "node-1", Version: "v0.1.0", Kernel: "6.1.0", Rules: "iptables with ipsets", Started: now.Add(-time.Hour)},
		Sources: []view.Source{{Name: "api", LastContact: &now}}, Totals: view.Totals{Services: 150, VirtualServers: 150, Destinations: 450, Draining: 1},
		Problems: []string{"Service shop/service-001: " + hostile}, History: &view.History{}, Services: services()}
	for i := range 40 {
		v.History.Entries = append(v.History.Entries, &view.PastSync{ID: i, Time: now.Add(time.Duration(i-40) * time.Minute), Kind: view.SyncIncremental,
			Causes:   []view.Cause{{Reason: view.ForServices, Objects: view.Some[string]{Count: 1, Items: []string{"shop/service-003"}}}},
			Services: view.Some[string]{Count: 1, Items: []string{"shop/service-003"}}, Operations: []view.OperationCount{{Object: "destination", Plane: "ipvs", Added: 1, Removed: 1}},
			Seconds: 0.0008, Stages: view.StageSeconds{Waited: 0.0001, Gather: 0.0001, Compile: 0.0002, Plan: 0.0001, Apply: 0.0004}})
	}
	v.NodeProblems = []view.NodeProblem{{Text: "x", Problem: "another program uses port 10256", Remedy: "stop it"}}
	return v
}

// sources returns the data sources of a node whose counters grow with each reading.
func sources() node.Sources {
	reading := uint64(0)
	return node.Sources{
		View: func(_ context.Context, service string) (*view.View, string, error) {
			v := viewOf(time.Now())
			if service != "" {
				v.Services = slices.DeleteFunc(v.Services, func(s view.Service) bool { return s.ID() != service })
			}
			return v, "", nil
		},
		Services: func(_ context.Context, v *view.View) (inspect.ServiceList, error) {
			return inspect.ServiceList{Agent: true, Items: v.Services}, nil
		},
		Counts: func(context.Context) (inspect.Counts, error) {
			reading++
			counts := inspect.Counts{}
			for i, s := range services() {
				n := uint64(i%7+1) * reading * reading * 10
				t := kernel.Traffic{Counters: kernel.Counters{Connections: n * 6, InBytes: n * 900, OutBytes: n * 90000}, Endpoints: map[netip.AddrPort]kernel.TableDestination{}}
				for j, e := range s.Frontends[0].Endpoints {
					t.Endpoints[e.Address] = kernel.TableDestination{Stats: kernel.Counters{Connections: n * uint64(j+1), InBytes: n * 300, OutBytes: n * 30000}}
				}
				counts[inspect.ServerOf(s.Frontends[0])] = t
			}
			return counts, nil
		},
		Explain: func(_ context.Context, to, from string) ([]explain.Explanation, error) {
			if to == "nowhere" {
				return nil, fmt.Errorf("%q is neither an address with a port nor a Service %s", to, hostile)
			}
			return []explain.Explanation{{Address: netip.MustParseAddrPort("10.96.0.1:80"), Protocol: "tcp", From: from, Service: "shop/service-001", Kind: "ClusterIP",
				Verdict: explain.Stops,
				Reasons: []string{"stopped in filter INPUT: " + hostile}, Steps: []explain.Step{
					{At: "address", Object: "ip addr 10.96.0.1/32", Message: "local to this node", Verdict: explain.Passes},
					{At: "sets", Object: "ipset test KUBE-IPVS-CLUSTER-IP 10.96.0.1", Message: "in KUBE-IPVS-CLUSTER-IP", Verdict: explain.Passes},
					{At: "raw PREROUTING", Object: "-P PREROUTING ACCEPT", Message: "the policy accepts", Verdict: explain.Passes},
					{At: "filter INPUT", Object: "-A INPUT -p tcp --dport 80 -j DROP", Message: "drops the packet", Verdict: explain.Stops},
				}, Endpoints: []explain.Endpoint{}}}, nil
		},
		Doctor: func(context.Context) (doctor.Report, error) {
			return doctor.Report{Verdict: "warning", Findings: finding.One(finding.Warning, "mtu", "smaller than that of the uplink", []string{"mtu 1400"}, "raise it")}, nil
		},
	}
}

// serve serves the page for nodes with these sources, node-1, node-2 and so on, and returns its link.
func serve(t *testing.T, of ...node.Sources) string {
	nodes := map[string]ui.Node{}
	var names []string
	for i, src := range of {
		n, name := node.New(src), fmt.Sprintf("node-%d", i+1)
		go n.Run(t.Context())
		nodes[name], names = n, append(names, name)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := ui.NewServer(names, nodes)
	go func() { _ = server.Serve(t.Context(), listener) }()
	lines := strings.Fields(server.Link(listener.Addr()))
	return lines[len(lines)-1]
}

// pictures is the directory for screenshots of each view. If it is empty, the test takes none.
var pictures = os.Getenv("PAGE_PICTURES")

func picture(p *browser.Page, name string) {
	if pictures != "" {
		p.Picture(filepath.Join(pictures, name+".png"))
	}
}

// drawn waits until the page shows a view.
func drawn(p *browser.Page, view string) {
	p.Until(fmt.Sprintf("document.body?.dataset.drawn === %q", view))
}

// shows waits until the page contains the text.
func shows(p *browser.Page, text string) {
	p.Until(fmt.Sprintf("document.body.innerText.includes(%q)", text))
}

// TestPage visits each view with the keyboard, in light and dark mode, on a wide screen and on a phone.
func TestPage(t *testing.T) {
	p := browser.Open(t)
	link := serve(t, sources(), sources())
	p.Size(1280, 900, false)
	p.Go(link)
	drawn(p, "overview")
	shows(p, "another program uses port 10256")
	p.Until("document.getElementById('verdict').textContent === 'warning'")
	p.Until("document.querySelectorAll('.curve').length >= 2 && document.querySelector('.tiles').innerText.includes('connections/s')")
	picture(p, "overview")

	p.Press("2")
	drawn(p, "services")
	shows(p, "150 of 150 Services match")
	picture(p, "services")
	p.Press("/")
	for _, key := range "service-001" {
		p.Press(string(key))
	}
	shows(p, "1 of 150 Services match")
	p.Press("Escape")
	p.Press("j")
	p.Press("Enter")
	drawn(p, "service")
	shows(p, "service-001-2")
	shows(p, hostile)
	p.Until("document.querySelectorAll('path.flow.none').length === 3") // another Service has won the frontend
	p.Eval("location.hash = '#/service/shop%2Fservice-004'")
	p.Until("document.querySelectorAll('path.flow:not(.none)').length === 3")
	picture(p, "service")
	p.Press("Escape")
	drawn(p, "services")

	explains(p)
	p.Press("4")
	drawn(p, "changes")
	shows(p, "services: shop/service-003")
	p.Until("document.getElementById('error').hidden")
	picture(p, "changes")
	p.Press("5")
	drawn(p, "problems")
	p.Eval("document.getElementById('doctor').click()")
	shows(p, "smaller than that of the uplink")
	picture(p, "problems")

	p.Scheme("dark")
	p.Press("1")
	drawn(p, "overview")
	light := p.Eval("getComputedStyle(document.body).backgroundColor")
	picture(p, "overview-dark")
	p.Press("t")
	if now := p.Eval("getComputedStyle(document.body).backgroundColor"); now == light {
		t.Errorf("pressing t did not change the background %s", now)
	}
	p.Press("?")
	p.Until("document.getElementById('keys').open")
	p.Press("?")
	p.Until("!document.getElementById('keys').open")
	onPhone(t, p)
	if title := p.Eval("document.title"); strings.Contains(title, "owned") || p.Eval("document.querySelectorAll('img').length") != "0" {
		t.Errorf("a name was rendered as HTML; title %s", title)
	}
	if err := p.Errors(); err != nil {
		t.Error(err)
	}
}

// explains visits the path of a packet, and then a destination that cannot be traced.
func explains(p *browser.Page) {
	p.Eval("location.hash = '#/explain/' + encodeURIComponent('10.96.0.1:80/tcp|10.244.1.7')")
	drawn(p, "explain")
	shows(p, "drops the packet")
	p.Until("document.querySelectorAll('.cross').length === 1 && document.querySelectorAll('line.cut').length === 1")
	picture(p, "explain")
	p.Eval("location.hash = '#/explain/nowhere'")
	shows(p, "neither an address with a port nor a Service")
	p.Until("!document.getElementById('error').hidden")

}

// onPhone checks that no view is wider than a phone.
func onPhone(t *testing.T, p *browser.Page) {
	p.Size(390, 844, true)
	p.Scheme("light")
	for _, view := range []string{"overview", "services", "service/shop%2Fservice-001", "explain/10.96.0.1:80", "changes", "problems"} {
		p.Eval(fmt.Sprintf("delete document.body.dataset.drawn; location.hash = '#/%s'", view))
		name, _, _ := strings.Cut(view, "/")
		drawn(p, name)
		if wide := p.Eval("document.documentElement.scrollWidth"); wide != "390" {
			t.Errorf("%s is %s pixels wide; the phone's screen is 390 pixels wide", view, wide)
		}
		picture(p, "phone-"+name)
	}
}
