package inspect

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/goldentest"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

func golden(t *testing.T, name, got string) {
	t.Helper()
	goldentest.Compare(t, filepath.Join("testdata", name), got)
}

var (
	noon    = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	earlier = noon.Add(-90 * time.Second)
)

func at(addr string) netip.AddrPort { return netip.MustParseAddrPort(addr) }

func ptr[T any](v T) *T { return &v }

// services returns Services with every kind of frontend and every state of an endpoint.
func services() []view.Service {
	endpoints := []view.Endpoint{
		{Address: at("10.244.1.5:8080"), Pod: "shop/web-1", Node: "node-1", Zone: "zone-a", State: view.Ready, Weight: ptr(uint32(10)), Wanted: ptr(uint32(10))},
		{Address: at("10.244.1.6:8080"), Pod: "shop/web-2", Node: "node-1", Zone: "zone-a", State: view.SlowStart, Since: &earlier, Weight: ptr(uint32(3)), Wanted: ptr(uint32(10))},
		{Address: at("10.244.2.7:8080"), Pod: "shop/web-3", Node: "node-2", Zone: "zone-b", State: view.Draining, Since: &earlier, Weight: ptr(uint32(0))},
		{Address: at("10.244.2.8:8080"), Pod: "shop/web-4", Node: "node-2", Zone: "zone-b", State: view.NotReady},
		{Address: at("10.244.2.9:8080"), Pod: "shop/web-5", Node: "node-2", Zone: "zone-b", State: view.Pending, Wanted: ptr(uint32(10))},
	}
	settings := []view.Setting{
		{Name: "scheduler", Value: "wrr", From: "annotation kube-ipvs.io/scheduler is rr, which ignores weights"},
		{Name: "affinity", Value: "3h0m0s", From: "annotation kube-ipvs.io/affinity-timeout"},
	}
	return []view.Service{
		{Namespace: "shop", Name: "api", Problems: []string{"Service shop/api: spec.ports[0].port \"10.96.0.10:80/tcp\": not served"}, Frontends: []view.Frontend{{
			Kind: view.ClusterIP, Address: at("10.96.0.10:80"), Protocol: "tcp", State: view.Conflict, Reason: "Service shop/web is older", Policy: "Cluster",
		}}},
		{Namespace: "shop", Name: "empty", Frontends: []view.Frontend{}},
		{Namespace: "shop", Name: "web", Frontends: []view.Frontend{
			{
				Port: "http", Kind: view.ClusterIP, Address: at("10.96.0.10:80"), Protocol: "tcp", State: view.Served, Policy: "Cluster", Bound: true,
				Scheduler: "wrr", Affinity: 10800, Settings: settings, Endpoints: endpoints,
			},
			{
				Port: "http", Kind: view.LoadBalancer, Address: at("203.0.113.1:80"), Protocol: "tcp", State: view.InternalOnly, Policy: "Local", Bound: true,
				Reason: "the external traffic policy is Local, and no endpoint is on this node", Scheduler: "wrr",
				SourceRanges: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}, Endpoints: endpoints[3:],
			},
			{Port: "http", Kind: view.NodePort, Address: at("[fd00:2::1]:30080"), Protocol: "tcp", State: view.Served, Policy: "Local"},
		}},
	}
}

func serverWith(key string, scheduler string, destinations ...kernel.ObservedDestination) (kernel.ServerKey, kernel.ObservedServer) {
	k := kernel.ServerKey{Addr: at(key), Protocol: inet.TCP}
	return k, kernel.ObservedServer{Server: kernel.Server{Key: k, Scheduler: scheduler, MaskBits: 32}, Destinations: destinations}
}

func counted(addr string, weight, active, inactive uint32) kernel.ObservedDestination {
	return kernel.ObservedDestination{
		Destination: kernel.Destination{Addr: at(addr), Weight: weight}, Stats: kernel.DestinationStats{Active: active, Inactive: inactive},
	}
}

// servers contains a destination unknown to the agent, and lacks the node port.
func servers() Servers {
	all := Servers{}
	key, server := serverWith("10.96.0.10:80", "wrr", counted("10.244.1.5:8080", 10, 12, 3), counted("10.244.1.6:8080", 4, 1, 0),
		counted("10.244.2.7:8080", 0, 2, 1), counted("10.244.9.9:8080", 1, 0, 0))
	all[key] = server
	key, server = serverWith("203.0.113.1:80", "wrr")
	all[key] = server
	key, server = serverWith("198.51.100.1:443", "rr", counted("192.0.2.9:443", 1, 7, 7))
	all[key] = server
	return all
}

func ours(key kernel.ServerKey) bool { return key.Addr.Port() == 80 }

func text(t *testing.T, print func(*bytes.Buffer) error) string {
	t.Helper()
	var b bytes.Buffer
	if err := print(&b); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func asJSON(t *testing.T, v any) string {
	t.Helper()
	out, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return string(out) + "\n"
}

func TestServices(t *testing.T) {
	list := ServiceListOf(services(), servers(), kernel.IPVSWithIPTables)
	golden(t, "services.golden", text(t, func(b *bytes.Buffer) error { return PrintServices(b, list, Table{}) }))
	golden(t, "services-wide.golden", text(t, func(b *bytes.Buffer) error { return PrintServices(b, list, Table{Wide: true}) }))
	golden(t, "service.golden", text(t, func(b *bytes.Buffer) error { return PrintService(b, list.Items[2]) }))
	golden(t, "services.json.golden", asJSON(t, list))
}

// TestMissing: a missing virtual server is missing where the data plane has it.
func TestMissing(t *testing.T) {
	for mode, want := range map[kernel.Mode]string{
		kernel.IPVSWithIPTables: "the kernel has no", kernel.NFTablesOnly: "the kernel has no", kernel.Userspace: "process has not opened",
	} {
		v := &view.View{Services: services(), Node: view.Node{Mode: mode}}
		f := JoinServices(v, Servers{}, kernel.IPVSWithIPTables, nil, "").Items[2].Frontends[0]
		if f.State != view.Missing || !strings.Contains(f.Reason, want) {
			t.Errorf("%s: %s (%s)", mode, f.State, f.Reason)
		}
	}
}

// TestShownScheduler: where nftables balances, the scheduler is what is done, with an agent and without one.
func TestShownScheduler(t *testing.T) {
	for mode, want := range map[kernel.Mode]string{kernel.IPVSWithNFTables: "wrr", kernel.NFTablesOnly: "random", kernel.Userspace: "wrr"} {
		shown := ServiceListOf(services(), servers(), mode).Items[2].Frontends[0].Scheduler
		if left := servicesOfKernel(servers(), mode, ours).Items[0].Frontends[0].Scheduler; shown != want || left != want {
			t.Errorf("%s: %s, and %s without an agent, want %s", mode, shown, left, want)
		}
		v := &view.View{Services: services(), Node: view.Node{Mode: mode}}
		v.Services[2].Frontends[0].Scheduler = "wrr"
		missing, unread := JoinServices(v, Servers{}, mode, ours, ""), JoinServices(v, nil, mode, ours, "no permission")
		for _, list := range []ServiceList{missing, unread} {
			if shown := list.Items[2].Frontends[0].Scheduler; shown != want {
				t.Errorf("%s, without virtual servers: %s, want %s", mode, shown, want)
			}
		}
	}
}

func TestJoinLeavesTheViewAlone(t *testing.T) {
	before := services()
	ServiceListOf(before, servers(), kernel.IPVSWithIPTables)
	if d := cmp.Diff(services(), before, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
		cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); d != "" {
		t.Error(d)
	}
}

func TestServicesOfKernel(t *testing.T) {
	list := servicesOfKernel(servers(), kernel.IPVSWithIPTables, ours)
	golden(t, "services-kernel.golden", text(t, func(b *bytes.Buffer) error { return PrintServices(b, list, Table{}) }))
	if list.Agent || len(list.Unknown) == 0 || strings.Contains(asJSON(t, list), "198.51.100.1") {
		t.Errorf("wrong list without an agent: %+v", list)
	}
}

func TestConnections(t *testing.T) {
	conn := func(client, virtual, endpoint, state string) kernel.Connection {
		return kernel.Connection{Protocol: "TCP", Client: at(client), Virtual: at(virtual), Destination: at(endpoint), State: state, Expires: 890}
	}
	list := Connections([]kernel.Connection{
		conn("198.51.100.7:1234", "10.96.0.10:80", "10.244.1.5:8080", "ESTABLISHED"),
		conn("198.51.100.7:0", "10.96.0.10:80", "10.244.1.5:8080", "NONE"),
		conn("198.51.100.6:999", "10.96.0.10:80", "10.244.9.9:8080", "FIN_WAIT"),
		conn("198.51.100.6:999", "198.51.100.1:443", "192.0.2.9:443", "ESTABLISHED"), // belongs to no Service
	}, ServiceListOf(services(), servers(), kernel.IPVSWithIPTables))
	golden(t, "conns.golden", text(t, func(b *bytes.Buffer) error { return PrintConnections(b, list, Table{}) }))
	golden(t, "conns-wide.golden", text(t, func(b *bytes.Buffer) error { return PrintConnections(b, list, Table{Wide: true}) }))
	golden(t, "conns.json.golden", asJSON(t, list))
}

func TestStatus(t *testing.T) {
	machine := Machine{Kernel: "6.1.0-1-amd64", Modules: []string{"ip_vs", "ip_vs_rr"}}
	machine.Count(servers(), "", ours)
	well := &view.View{
		Time: noon,
		Agent: view.Agent{
			Synced: true, LastSync: &view.Sync{Started: earlier, Seconds: 0.012, Changes: 3}, LastFullSync: &view.Sync{Started: earlier, Seconds: 0.2},
		},
		Node: view.Node{
			Name: "node-1", Version: "1.0", PID: 42, Kernel: machine.Kernel, Rules: "iptables-nft 1.8.9 (kubelet uses it)", Families: []string{"IPv4", "IPv6"},
			Started: earlier, ConfigFile: "/etc/kube-ipvs.yaml", Settings: []view.Setting{{Name: "ipvs.scheduler", Value: "wlc", From: "--ipvs-scheduler"}},
		},
		Sources: []view.Source{{Name: "Service", LastContact: &earlier}},
		Totals:  view.Totals{Services: 3, VirtualServers: 4, Destinations: 9, Draining: 1},
	}
	ill := *well
	ill.Node.ConfigError = "kube-ipvs.yaml:4: ipvs.scheduler \"fastest\": want one of rr, wrr\nkube-ipvs.yaml:5: unknown"
	ill.Node.UnservedFamilies = []string{"IPv6: the kernel has none"}
	ill.Agent = view.Agent{
		Error: "3 of 5 operations failed", RetryAt: &noon, Drift: 4, LastDrift: &earlier,
		Drifts: []view.Drift{
			{Part: "sets", Kind: "missing", Count: 3, Audits: 2, First: earlier.Add(-time.Hour), Last: earlier,
				What: []string{"set KIPVS-4-VIP: 2 entries missing, the first 10.96.0.1"}},
			{Part: "rules", Kind: "emptied", Count: 1, Audits: 1, First: earlier, Last: earlier,
				What: []string{"IPv4 table nat: chain KUBE-SERVICES was emptied by kube-proxy"}},
		},
		Foreign:   []view.Foreign{{Server: "-t 10.96.0.10:80", Service: "shop/web:http"}},
		Leftovers: []string{"address 10.96.0.99"},
	}
	ill.Sources = []view.Source{{Name: "EndpointSlice", Error: "connection refused"}, {Name: "Service", LastContact: &earlier, Error: "connection refused"}}
	ill.Problems = []string{"Service shop/api: not served"}
	for name, v := range map[string]*view.View{"well": well, "ill": &ill, "kernel": nil} {
		var silence error
		if v == nil {
			silence = errors.New("no agent answers on /run/kube-ipvs/status.sock")
		}
		status := StatusOf(v, silence, machine)
		golden(t, "status-"+name+".golden", text(t, func(b *bytes.Buffer) error { return PrintStatus(b, status) }))
		if v != nil {
			golden(t, "status-"+name+".json.golden", asJSON(t, status))
		}
	}
}

// TestUncountedConnections: commands must not report 0 connections if connections could not be counted.
func TestUncountedConnections(t *testing.T) {
	machine := Machine{}
	machine.Count(servers(), "conntrack cannot be read", ours)
	status := StatusOf(nil, errors.New("no agent"), machine)
	printed := text(t, func(b *bytes.Buffer) error { return PrintStatus(b, status) })
	if !strings.Contains(printed, "1 foreign; connections could not be counted: conntrack cannot be read") || strings.Contains(string(asJSON(t, status)), "connections\":") {
		t.Errorf("%s%s", printed, asJSON(t, status))
	}
	list := ServiceListOf(services(), servers(), kernel.IPVSWithIPTables)
	list.Uncounted("conntrack cannot be read")
	if shown := string(asJSON(t, list)); !strings.Contains(shown, "connections: conntrack cannot be read") || strings.Contains(shown, `"connections":`) {
		t.Error(shown)
	}
}

// TestForeignText: other people choose the names of pods. None of them can send escape sequences to the terminal, or begin a line.
func TestForeignText(t *testing.T) {
	const evil = "x\x1b]0;owned\a\r\nfake"
	endpoint := view.Endpoint{Address: netip.MustParseAddrPort("10.244.0.1:8080"), Pod: evil, Node: evil, Zone: evil, State: view.Ready}
	frontend := view.Frontend{
		Kind: view.ClusterIP, Port: evil, Address: netip.MustParseAddrPort("10.96.0.1:80"), Protocol: "tcp", State: view.Served, Reason: evil,
		Scheduler: evil, Policy: evil, Settings: []view.Setting{{Name: "scheduler", Value: evil, From: evil}}, Endpoints: []view.Endpoint{endpoint},
	}
	service := view.Service{Namespace: "shop", Name: evil, Problems: []string{evil}, Frontends: []view.Frontend{frontend}}
	conn := Connection{Namespace: "shop", Name: evil, Port: evil, Pod: evil, Node: evil, State: evil}
	s := Status{Findings: []finding.Finding{finding.New(finding.Broken, evil, evil, []string{evil}, evil)}, View: &view.View{Problems: []string{evil}}}
	for name, print := range map[string]func(*bytes.Buffer) error{
		"services": func(b *bytes.Buffer) error {
			return PrintServices(b, ServiceList{Items: []view.Service{service}}, Table{Wide: true})
		},
		"service": func(b *bytes.Buffer) error { return PrintService(b, service) },
		"conns": func(b *bytes.Buffer) error {
			return PrintConnections(b, ConnectionList{Items: []Connection{conn}}, Table{Wide: true})
		},
		"status": func(b *bytes.Buffer) error { return PrintStatus(b, s) },
	} {
		if got := text(t, print); strings.ContainsAny(got, "\x1b\a\r") || strings.Contains(got, "\nfake") || !strings.Contains(got, "x\uFFFD]0;owned") {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestTableForms(t *testing.T) {
	list := ServiceListOf(services(), servers(), kernel.IPVSWithIPTables)
	all := text(t, func(b *bytes.Buffer) error { return PrintServices(b, list, Table{}) })
	titles, rest, _ := strings.Cut(all, "\n")
	if got := text(t, func(b *bytes.Buffer) error { return PrintServices(b, list, Table{NoHeaders: true}) }); strings.Contains(got, "NAMESPACE") ||
		strings.Count(got, "\n") != strings.Count(rest, "\n") {
		t.Errorf("without titles:\n%s", got)
	}
	got := text(t, func(b *bytes.Buffer) error { return PrintServices(b, list, Table{SortBy: "active"}) })
	at := strings.Index(titles, " ACTIVE") + 1
	var column []string
	for line := range strings.Lines(got) {
		column = append(column, strings.Fields(line[at:])[0])
	}
	if !slices.IsSortedFunc(column[1:], compareCells) {
		t.Errorf("sorted by active:\n%s", got)
	}
	if err := PrintServices(&bytes.Buffer{}, list, Table{SortBy: "age"}); err == nil || !strings.Contains(err.Error(), "namespace, name, port") {
		t.Errorf("the error for an unknown column is %v", err)
	}
	if got := text(t, func(b *bytes.Buffer) error { return PrintNames(b, list) }); !strings.Contains(got, "shop/web\n") {
		t.Errorf("names:\n%s", got)
	}
	for a, b := range map[string]string{"9": "10", "9s": "10s", "2/2": "10/10", "7": "-", "a": "b"} {
		if compareCells(a, b) >= 0 || compareCells(b, a) <= 0 {
			t.Errorf("%q must come before %q", a, b)
		}
	}
}

// TestStaleSource: an agent with a stale source is unwell even if nothing has failed.
func TestStaleSource(t *testing.T) {
	for silent, unwell := range map[time.Duration]bool{10 * time.Minute: false, 12 * time.Minute: true} {
		last := noon.Add(-silent)
		v := &view.View{Time: noon, Agent: view.Agent{Synced: true}, Sources: []view.Source{{Name: "Service", LastContact: &last}}}
		s := StatusOf(v, nil, Machine{})
		printed := text(t, func(b *bytes.Buffer) error { return PrintStatus(b, s) })
		if (len(s.Unwell) > 0) != unwell || strings.Contains(printed, "! source Service") != unwell {
			t.Errorf("silent for %s: %v\n%s", silent, s.Unwell, printed)
		}
	}
}
