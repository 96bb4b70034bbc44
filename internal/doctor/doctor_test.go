package doctor

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/iptables"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// breakage is one defect and its finding. An empty severity means no finding.
type breakage struct {
	name     string
	spoil    func(*testing.T, *node)
	severity finding.Severity
	want     []string
}

var breakages = []breakage{
	{"nothing", func(*testing.T, *node) {}, "", nil},
	{"preflight, fatal", func(_ *testing.T, n *node) {
		n.Preflight = finding.One(finding.Broken, "module ip_vs", "missing", nil, "run `modprobe ip_vs`")
	},
		finding.Broken, []string{"module ip_vs", "modprobe ip_vs"}},
	{"preflight", func(_ *testing.T, n *node) {
		n.Preflight = finding.One(finding.Warning, "IPv6", "disabled", nil, "enable it")
	}, finding.Warning, []string{"IPv6"}},
	{"no agent", func(_ *testing.T, n *node) { n.View, n.Silence = nil, "no agent responds" }, finding.Broken, []string{"agent", "no agent responds"}},
	{"vital Service", func(_ *testing.T, n *node) {
		n.View.Services = []view.Service{{Namespace: "default", Name: "kubernetes", Frontends: []view.Frontend{
			{Address: netip.MustParseAddrPort("10.96.0.1:443"), Protocol: "tcp", State: view.NoEndpoints},
		}}}
	}, finding.Broken, []string{"not served with a usable endpoint", "default/kubernetes at 10.96.0.1:443/tcp: NoEndpoints, 0 endpoints"}},
	{"vital Service in slow start", func(_ *testing.T, n *node) {
		weight := uint32(1)
		n.View.Services = []view.Service{{Namespace: "default", Name: "kubernetes", Frontends: []view.Frontend{
			{Address: netip.MustParseAddrPort("10.96.0.1:443"), Protocol: "tcp", State: view.Served, Endpoints: []view.Endpoint{
				{Address: netip.MustParseAddrPort("192.0.2.1:6443"), State: view.SlowStart, Wanted: &weight},
			}},
		}}}
	}, "", nil},
	{"path", func(_ *testing.T, n *node) {
		n.Walks = []Walk{
			{Path: Path{Service: "default/kubernetes", Sender: fromPod, Question: explain.Question{From: netip.MustParseAddr("10.244.0.7")}}, Verdict: explain.Passes},
			{Path: Path{Service: "default/web", Sender: fromNode}, Verdict: explain.Stops,
				Causes: []explain.Cause{{Text: "stopped in filter INPUT", Verdict: explain.Stops}}},
		}
	}, finding.Broken, []string{"packets to Services do not arrive: stopped in filter INPUT", "default/web", "from this node", "kube-ipvs explain"}},
	{"configuration", func(_ *testing.T, n *node) {
		n.View.Node.ConfigError, n.View.Node.ConfigFile = "line 3: boom", "/etc/c.yaml"
	}, finding.Warning, []string{"line 3: boom", "/etc/c.yaml"}},
	{"initial lists", func(_ *testing.T, n *node) { n.View.Agent.Synced = false }, finding.Broken, []string{"initial lists incomplete"}},
	{"failed sync", func(_ *testing.T, n *node) { n.View.Agent.Error = "boom" }, finding.Broken, []string{"last sync failed", "boom"}},
	{"failed source", func(_ *testing.T, n *node) { n.View.Sources[0].Error = "forbidden" }, finding.Broken, []string{"source Service", "forbidden"}},
	{"stale source", func(_ *testing.T, n *node) { old := noon.Add(-20 * time.Minute); n.View.Sources[0].LastContact = &old }, finding.Broken,
		[]string{"source Service", "20m0s ago"}},
	{"long sync", func(_ *testing.T, n *node) { n.View.Agent.Busy = true }, finding.Warning, []string{"a sync is taking a long time", "state as of 2026-03-01T12:00:00Z"}},
	{"not ready", func(_ *testing.T, n *node) {
		n.answers["http://127.0.0.1:10256/readyz"] = Answer{Status: 503, Body: "waiting\n"}
	}, finding.Broken, []string{"/readyz", "503", "waiting"}},
	{"health port", func(_ *testing.T, n *node) { delete(n.answers, "http://127.0.0.1:10256/livez") }, finding.Broken, []string{"/livez", "connection refused"}},
	{"metrics port", func(_ *testing.T, n *node) { delete(n.answers, "http://127.0.0.1:10249/metrics") }, finding.Warning, []string{"/metrics", "does not answer"}},
	{"metrics elsewhere", func(_ *testing.T, n *node) {
		n.set("metricsBindAddress", "[::]:9000")
		n.answers["http://127.0.0.1:9000/metrics"] = Answer{Status: 200}
		delete(n.answers, "http://127.0.0.1:10249/metrics")
	}, "", nil},
	{"no metrics wanted", func(_ *testing.T, n *node) {
		n.set("metricsBindAddress", "")
		delete(n.answers, "http://127.0.0.1:10249/metrics")
	}, "", nil},
	{"foreign virtual server", func(_ *testing.T, n *node) {
		n.View.Agent.Foreign = []view.Foreign{{Server: "-t 10.96.0.1:80", Service: "shop/cart"}}
	},
		finding.Warning, []string{"-t 10.96.0.1:80 instead of Service shop/cart", "run `ipvsadm -D -t 10.96.0.1:80`"}},
	{"foreign address", func(_ *testing.T, n *node) {
		n.View.Agent.Leftovers = []string{"virtual server -t 192.0.2.9:80", "address 192.0.2.9"}
	}, finding.Warning, []string{"192.0.2.9", "run `ipvsadm -D -t 192.0.2.9:80 && ip addr del 192.0.2.9/32 dev kube-ipvs0`"}},
	{"drift", func(_ *testing.T, n *node) {
		at := noon.Add(-time.Minute)
		n.View.Agent.LastDrift, n.View.Agent.Drift = &at, 7
		n.View.Agent.Drifts = []view.Drift{{Part: "rules", Kind: "emptied", Count: 7, Audits: 3, First: at.Add(-time.Hour), Last: at, What: []string{"chain KUBE-SERVICES"}}}
	}, finding.Warning, []string{"7 repairs", "1m0s ago", "rules: 7 emptied, found by 3 audits, the first 1h1m0s ago, the last 1m0s ago: chain KUBE-SERVICES"}},
	{"drift long ago", func(_ *testing.T, n *node) {
		at := noon.Add(-2 * time.Hour)
		n.View.Agent.LastDrift, n.View.Agent.Drift = &at, 7
	}, "", nil},
	{"Services", func(_ *testing.T, n *node) { n.View.Problems = strings.Split("a b c d e f g", " ") }, finding.Warning, []string{"7 problems", "and 2 more"}},
	{"one Service", func(_ *testing.T, n *node) { n.View.Problems = []string{"a"} }, finding.Warning, []string{"1 problem\n"}},
	{"kube-proxy's process", func(_ *testing.T, n *node) { n.files["/proc/77/comm"] = "kube-proxy\n" }, finding.Warning,
		[]string{"another proxy is running", "kube-proxy (process 77)"}},
	{"kube-proxy's leftovers", func(_ *testing.T, n *node) {
		n.left = []kernel.Leftover{itsJump, {Place: kernel.OldSets, Name: "KUBE-LOOP-BACK"}}
	},
		finding.Warning, []string{"kube-proxy's rules", "iptables-nft -t nat -A PREROUTING -j KUBE-SERVICES", "ipset KUBE-LOOP-BACK",
			"`kube-ipvs cleanup --kube-proxy-leftovers`"}},
	{"kube-proxy's nftables", func(_ *testing.T, n *node) {
		n.left = []kernel.Leftover{{Place: kernel.RulesNFTables, Family: inet.IPv4}}
		n.Chains = []kernel.BaseChain{{Family: "ip", Table: "kube-proxy", Name: "nat-prerouting", Rules: 1}}
	},
		finding.Warning, []string{"nftables table ip kube-proxy"}},
	{"kube-proxy beside", func(_ *testing.T, n *node) {
		n.left = []kernel.Leftover{itsJump}
		n.set("serviceProxyName", "kube-ipvs")
	}, finding.Notice,
		[]string{"as configured with service-proxy-name"}},
	{"sysctl", func(_ *testing.T, n *node) { n.files["/proc/sys/net/ipv4/ip_forward"] = "0\n" }, finding.Warning, []string{"net/ipv4/ip_forward", "is 0, must be 1"}},
	{"conntrack nearly full", func(_ *testing.T, n *node) { n.files["/proc/sys/"+conntrackCount] = "220000\n" }, finding.Warning,
		[]string{"nearly full", "nf_conntrack_count = 220000"}},
	{"conntrack full", func(_ *testing.T, n *node) { n.files["/proc/sys/"+conntrackCount] = "262144\n" }, finding.Broken, []string{"the table is full"}},
	{"endpoint on this node", func(_ *testing.T, n *node) {
		n.Endpoints = []Reached{{Address: netip.MustParseAddrPort("10.244.0.7:8080"), Pod: "shop/web-1", Service: "shop/web", Failure: "i/o timeout"}}
	}, finding.Warning, []string{"10.244.0.7:8080 (pod shop/web-1) of Service shop/web: i/o timeout"}},
	{"reached endpoint", func(_ *testing.T, n *node) {
		n.Endpoints = []Reached{{Address: netip.MustParseAddrPort("10.244.0.7:8080")}}
	}, "", nil},
	{"local route", func(_ *testing.T, n *node) { n.Unrouted = []netip.Addr{netip.MustParseAddr("10.96.0.1")} }, finding.Broken, []string{"local routes", "10.96.0.1"}},
	{"IPVS table", func(_ *testing.T, n *node) { n.Connections = 100_000 }, finding.Warning, []string{"100000 connections in 4096 buckets", "conn_tab_bits"}},
	{"IPVS table that grows", func(_ *testing.T, n *node) { n.Connections, n.Release = 100_000, "7.1.0" }, "", nil},
	{"estimators", func(_ *testing.T, n *node) { n.Destinations = 60_000 }, finding.Warning, []string{"60000 virtual servers and destinations", "use Linux 6.2 or newer"}},
	{"estimators that can be stopped", func(_ *testing.T, n *node) {
		n.Destinations, n.files["/proc/sys/"+runEstimation] = 60_000, "1\n"
	}, finding.Warning, []string{"6.2", "ipvs.trafficCounters to false"}},
	{"estimators of a newer kernel", func(_ *testing.T, n *node) { n.Destinations, n.Release = 60_000, "6.12.0" }, "", nil},
	{"no estimation", func(_ *testing.T, n *node) { n.files["/proc/sys/"+runEstimation] = "0\n" }, finding.Notice, []string{"run_estimation = 0", "old values"}},
	{"no estimation, as configured", func(_ *testing.T, n *node) {
		n.files["/proc/sys/"+runEstimation], n.Destinations = "0\n", 60_000
		n.View.Base.Sysctls = append(n.View.Base.Sysctls, view.Sysctl{Name: runEstimation, Value: "0"})
	}, "", nil},
	{"module not at boot", func(_ *testing.T, n *node) { delete(n.files, "/etc/modules-load.d/k8s.conf") }, finding.Notice, []string{"br_netfilter", "not loaded at boot"}},
	{"reverse path", func(_ *testing.T, n *node) {
		n.files["/proc/net/route"] += strings.ReplaceAll(strings.SplitAfter(routes, "\n")[1], "eth0", "eth1")
		n.files["/proc/sys/net/ipv4/conf/all/rp_filter"], n.files["/proc/sys/net/ipv4/conf/eth1/rp_filter"] = "0\n", "1\n"
	}, finding.Warning, []string{"reverse path filter", "eth1/rp_filter = 1"}},
	{"loose reverse path", func(_ *testing.T, n *node) {
		n.files["/proc/net/route"] += strings.ReplaceAll(strings.SplitAfter(routes, "\n")[1], "eth0", "eth1")
		n.files["/proc/sys/net/ipv4/conf/all/rp_filter"], n.files["/proc/sys/net/ipv4/conf/eth1/rp_filter"] = "2\n", "1\n"
	}, "", nil},
	{"certificate expired", func(_ *testing.T, n *node) { n.certificate(noon.Add(-time.Hour)) }, finding.Broken,
		[]string{"/etc/kubeconfig (client-certificate-data)", "expired 2026-03-01"}},
	{"certificate expires", func(_ *testing.T, n *node) { n.certificate(noon.AddDate(0, 0, 7)) }, finding.Warning, []string{"expires 2026-03-08"}},
	{"certificate is good", func(_ *testing.T, n *node) { n.certificate(noon.AddDate(1, 0, 0)) }, "", nil},
	{"CA of the service account", func(_ *testing.T, n *node) { n.authorities(authority("ca", noon.AddDate(0, 0, 7))) }, finding.Warning,
		[]string{serviceAccount + "ca.crt"}},
	{"certificate beside the kubeconfig", func(_ *testing.T, n *node) {
		n.kubeconfig("{server: 'https://192.0.2.10:6443', certificate-authority: ca.pem}", "token: abc")
		n.files["/etc/ca.pem"] = string(authority("ca", noon.AddDate(0, 0, 7)).pem)
	}, finding.Warning, []string{"certificate /etc/ca.pem"}},
	{"certificate of the future", func(_ *testing.T, n *node) {
		n.Now = noon.AddDate(-30, 0, 0)
		n.chain = nil
		n.certificate(noon.AddDate(1, 0, 0))
	}, finding.Broken,
		[]string{"clock", "1996-03-01T12:00:00Z", "/etc/kubeconfig"}},
	{"clock", func(_ *testing.T, n *node) { n.wrong = true }, finding.Notice, []string{"clock", "time service"}},
	{"MTU", func(_ *testing.T, n *node) { n.tunnel(1480, 1500) }, finding.Warning, []string{"flannel.1 (vxlan) has MTU 1480 and adds 50 bytes", "uplink has MTU 1500"}},
	{"MTU that fits", func(_ *testing.T, n *node) { n.tunnel(1450, 1500) }, "", nil},
	{"MTU of ipip", func(_ *testing.T, n *node) {
		n.tunnel(1450, 1500)
		n.link(kernel.Interface{Name: "tunl0", Kind: "ipip", MTU: 1500, Up: true})
	}, finding.Warning, []string{"tunl0 (ipip)"}},
	{"memory", func(_ *testing.T, n *node) {
		n.files["/proc/meminfo"] = "MemTotal:  1000000 kB\nMemAvailable:  20000 kB\n"
	}, finding.Warning, []string{"MemAvailable: 20000 kB"}},
	{"enough memory", func(_ *testing.T, n *node) {
		n.files["/proc/meminfo"] = "MemTotal:  1000000 kB\nMemAvailable:  60000 kB\n"
	}, "", nil},
	{"neighbors of this namespace", func(_ *testing.T, n *node) {
		delete(n.files, "/proc/net/stat/arp_cache")
		n.files["/proc/net/arp"] = strings.Repeat("line\n", 1001)
	}, finding.Warning, []string{"1000 entries", "net/ipv4/neigh/default/gc_thresh3 = 1024"}},
	{"neighbors of all namespaces", func(_ *testing.T, n *node) { n.files["/proc/net/stat/arp_cache"] = fmt.Sprintf(stat, 1000, 1000) }, finding.Warning,
		[]string{"neighbor table of IPv4", "1000 entries"}},
	{"no strictARP", func(_ *testing.T, n *node) { n.arp("0", "2") }, finding.Notice, []string{"eth0/arp_ignore = 0, must be 1", "ipvs.strictARP"}},
	{"no strictARP, with MetalLB", func(_ *testing.T, n *node) { n.arp("1", "0"); n.files["/proc/88/comm"] = "speaker\n" }, finding.Warning,
		[]string{"eth0/arp_announce = 0, must be 2", "speaker (process 88)"}},
	{"strictARP", func(_ *testing.T, n *node) { n.arp("1", "2") }, "", nil},
	{"forwarded packets with IPVS", func(_ *testing.T, n *node) { n.forward() }, "", nil},
	{"forwarded packets", func(_ *testing.T, n *node) { n.balance(); n.forward() }, finding.Broken,
		[]string{"IPv4: -P FORWARD DROP", "none of its rules (0) accepts", "--ctstate DNAT"}},
	{"forwarded packets of Docker", func(_ *testing.T, n *node) {
		n.balance()
		n.forward("-j DOCKER-USER", "-o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", "-i docker0 ! -o docker0 -j ACCEPT",
			"-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT")
	}, finding.Broken, []string{"none of its rules (4) accepts"}},
	{"accepted forwarded packets", func(_ *testing.T, n *node) {
		n.balance()
		n.forward("-j DOCKER-USER", "-m conntrack --ctstate DNAT -j ACCEPT")
	}, "", nil},
	{"accepted forwarded packets of every state but one", func(_ *testing.T, n *node) {
		n.balance()
		n.forward("-m conntrack ! --ctstate INVALID -j ACCEPT")
	}, "", nil},
	{"forwarded packets that another chain accepts", func(_ *testing.T, n *node) {
		n.balance()
		n.forward("-j FLANNEL-FWD")
		at := kernel.ChainID{Table: "filter", Chain: "FLANNEL-FWD"}
		n.Rules[inet.IPv4].Rules[at] = []kernel.SavedRule{iptables.ParseRule(at, "-s 10.244.0.0/16 -j ACCEPT"), iptables.ParseRule(at, "-j FLANNEL-FWD")}
	}, "", nil},
	{"forwarded packets in nftables", func(_ *testing.T, n *node) {
		n.balance()
		n.Chains = []kernel.BaseChain{{Family: "inet", Table: "guard", Name: "fwd", Hook: kernel.HookForward, Drops: true, Rules: 3}}
	}, "", nil}, // checkPaths covers these rules
	{"no forwarded packets in nftables", func(_ *testing.T, n *node) {
		n.balance()
		n.Chains = []kernel.BaseChain{{Family: "inet", Table: "guard", Name: "fwd", Hook: kernel.HookForward, Drops: true}}
	}, finding.Broken, []string{"nft list chain inet guard fwd"}},
	{"IPVS's own checks with nftables", func(_ *testing.T, n *node) {
		n.balance()
		n.Destinations, n.Connections, n.files["/proc/sys/"+keepalive] = 60_000, 100_000, "7200\n"
	}, "", nil},
	{"keepalive", func(_ *testing.T, n *node) { n.files["/proc/sys/"+keepalive] = "7200\n" }, finding.Notice, []string{"15m0s", "tcp_keepalive_time = 7200"}},
	{"keepalive and a longer timeout", func(_ *testing.T, n *node) {
		n.files["/proc/sys/"+keepalive] = "7200\n"
		n.set("ipvs.tcpTimeout", "3h")
	}, "", nil},
}

func TestFindings(t *testing.T) {
	for _, b := range slices.Concat(breakages, surroundings, programs, clients, onTheWay, packets) {
		t.Run(b.name, func(t *testing.T) {
			n := well()
			b.spoil(t, n)
			n.Read(n)
			report := Examine(n.Facts)
			if len(report.Unchecked) > 0 {
				t.Errorf("doctor did not check %q", report.Unchecked)
			}
			if n.mode().RulesInNFTables() { // a notice reports this mode
				i := slices.IndexFunc(report.Findings, func(f finding.Finding) bool { return f.Subject == "rules" && f.Severity == finding.Notice })
				if i < 0 {
					t.Fatalf("findings %+v, want a notice that the rules are in nftables", report.Findings)
				}
				report.Findings = slices.Delete(report.Findings, i, i+1)
			}
			if b.severity == "" {
				if len(report.Findings) > 0 || report.Verdict != finding.Well {
					t.Errorf("verdict %s, findings %+v; want no findings", report.Verdict, report.Findings)
				}
				return
			}
			if len(report.Findings) != 1 || report.Findings[0].Severity != b.severity {
				t.Fatalf("findings %+v; want one with severity %s", report.Findings, b.severity)
			}
			f := report.Findings[0]
			text := strings.Join(append([]string{f.Subject, f.Problem, f.Remedy}, f.Evidence...), "\n")
			for _, part := range b.want {
				if !strings.Contains(text, part) {
					t.Errorf("the finding lacks %q:\n%s", part, text)
				}
			}
			want := map[finding.Severity]string{finding.Broken: "broken", finding.Warning: "warning", finding.Notice: finding.Well}[b.severity]
			if report.Verdict != want || f.Remedy == "" {
				t.Errorf("verdict %s, want %s; remedy %q", report.Verdict, want, f.Remedy)
			}
		})
	}
}

// TestEveryCheckHasABreakage: every check has a test in which it finds something.
func TestEveryCheckHasABreakage(t *testing.T) {
	checks := slices.Concat(checks, ipvsChecks)
	fired := make([]bool, len(checks))
	for _, b := range slices.Concat(breakages, surroundings, programs, clients, onTheWay, packets) {
		n := well()
		b.spoil(t, n)
		n.Read(n)
		for i, check := range checks {
			fired[i] = fired[i] || len(check(n.Facts)) > 0
		}
	}
	for i := range checks {
		if !fired[i] {
			t.Errorf("no breakage makes check %d find anything", i)
		}
	}
}

func TestMostSeriousFirst(t *testing.T) {
	n := well()
	for _, b := range slices.Concat(breakages, surroundings, programs, clients, onTheWay, packets) {
		v := n.View
		if b.spoil(t, n); n.View == nil {
			n.View = v
		}
	}
	n.Read(n)
	report := Examine(n.Facts)
	at := func(f finding.Finding) int {
		return slices.Index([]finding.Severity{finding.Broken, finding.Warning, finding.Notice}, f.Severity)
	}
	last := 0
	for _, f := range report.Findings {
		if at(f) < last {
			t.Errorf("%s %s is listed too late", f.Severity, f.Subject)
		}
		last = at(f)
	}
	if report.Verdict != string(finding.Broken) || len(report.Findings) < len(checks)/2 {
		t.Errorf("verdict %s with %d findings", report.Verdict, len(report.Findings))
	}
}
