package doctor

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

const (
	// The kernel drops new connections when the table of tracked connections is full.
	conntrackHigh, conntrackFull = 80, 95 // percent
	// A lookup walks a bucket's connections one by one.
	connectionsPerBucket = 16
	// Before Linux 6.2, one timer interrupt updates all estimators.
	manyEstimators = 50_000
	ipvsTCPTimeout = 15 * time.Minute
)

// checkProxies finds another proxy, or rules that another proxy left behind.
func checkProxies(f Facts) []finding.Finding {
	evidence := slices.Clone(f.Processes)
	for _, a := range f.Answers {
		if strings.HasSuffix(a.URL, "/proxyMode") && a.Status == 200 {
			evidence = append(evidence, fmt.Sprintf("%s answers %q", a.URL, strings.TrimSpace(a.Body)))
		}
	}
	running := len(evidence) > 0
	var left []string
	for _, object := range f.Leftovers {
		left = append(left, object.String())
	}
	evidence = append(evidence, examples(left)...)
	beside := f.setting("serviceProxyName", "") != ""
	const replace = "see docs/replace-kube-proxy.md to stop it, or docs/side-by-side.md to let each serve its own Services"
	switch {
	case len(evidence) == 0:
		return nil
	case beside:
		return finding.One(finding.Notice, "other proxy", "another proxy serves its own Services on this node, as configured with service-proxy-name", evidence, "nothing to do")
	case running:
		return finding.One(finding.Warning, "other proxy", "another proxy is running on this node; if it serves the same Services, the two undo each other's changes",
			evidence, replace)
	}
	return finding.One(finding.Warning, "kube-proxy's rules", "present; kube-proxy is running on this node or left them behind", evidence,
		"if kube-proxy is running, "+replace+"; otherwise run `kube-ipvs cleanup --kube-proxy-leftovers` while the agent serves")
}

// checkSysctls finds sysctls that another program has changed back.
func checkSysctls(f Facts) []finding.Finding {
	if f.View == nil {
		return nil
	}
	var found []finding.Finding
	for _, s := range f.View.Base.Sysctls {
		if have, known := f.Sysctls[s.Name]; known && have != s.Value {
			found = append(found, finding.New(finding.Warning, "sysctl "+s.Name, fmt.Sprintf("is %s, must be %s", have, s.Value), nil,
				"stop the program that sets it (/etc/sysctl.d, another agent); the agent sets it again within 30 s if it has the permission"))
		}
	}
	return found
}

func checkConntrack(f Facts) []finding.Finding {
	count, ok := f.number(conntrackCount)
	limit, ok2 := f.number(conntrackMax)
	if !ok || !ok2 || limit == 0 || count*100 < limit*conntrackHigh {
		return nil
	}
	found := finding.New(finding.Warning, "connection tracking", "the table is nearly full; when it is full, new connections are dropped",
		[]string{fmt.Sprintf("%s = %d", conntrackCount, count), fmt.Sprintf("%s = %d", conntrackMax, limit)},
		"raise conntrack.maxPerCore or conntrack.min, or lower conntrack.tcpEstablishedTimeout")
	if count*100 >= limit*conntrackFull {
		found.Severity, found.Problem = finding.Broken, "the table is full; new connections are dropped"
	}
	return []finding.Finding{found}
}

// older reports whether the kernel is older than a version; false if its version is unknown.
func (f *Facts) older(major, minor int) bool {
	var x, y int
	_, err := fmt.Sscanf(f.Release, "%d.%d", &x, &y)
	return err == nil && (x < major || x == major && y < minor)
}

// checkTable finds a connection table with long buckets. Since Linux 7.1, the table grows automatically.
func checkTable(f Facts) []finding.Finding {
	if f.TableSize == 0 || f.Connections <= uint64(f.TableSize)*connectionsPerBucket || !f.older(7, 1) {
		return nil
	}
	return finding.One(finding.Warning, "IPVS connection table", "too small; the kernel searches a long list for every packet",
		[]string{fmt.Sprintf("%d connections in %d buckets", f.Connections, f.TableSize)},
		"write `options ip_vs conn_tab_bits=20` to a file in /etc/modprobe.d on the host, and reboot")
}

func checkEstimators(f Facts) []finding.Finding {
	if f.View != nil && slices.ContainsFunc(f.View.Base.Sysctls, func(s view.Sysctl) bool { return s.Name == runEstimation }) {
		return nil // the agent stops them; checkSysctls reports it if that fails
	}
	if f.Sysctls[runEstimation] == "0" {
		return finding.One(finding.Notice, "IPVS counters", "stopped: `ipvsadm --stats`, `ipvsadm --rate`, `kube-ipvs top` and metrics of traffic show old values",
			[]string{runEstimation + " = 0"}, "if you need them, set ipvs.trafficCounters to true, and run `sysctl -w net.ipv4.vs.run_estimation=1`")
	}
	if n := f.VirtualServers + f.Destinations; n > manyEstimators && f.older(6, 2) {
		remedy := "use Linux 6.2 or newer"
		if f.Sysctls[runEstimation] != "" { // it exists since Linux 5.16
			remedy += ", or set ipvs.trafficCounters to false if nothing needs the counters (`ipvsadm --stats`, `kube-ipvs top`, metrics of traffic)"
		}
		return finding.One(finding.Warning, "IPVS counters", "this kernel updates all counters in one interrupt every two seconds, which delays packets",
			[]string{fmt.Sprintf("%d virtual servers and destinations, kernel %s", n, f.Release)}, remedy)
	}
	return nil
}

// dropping lists the sysctls of IPVS's defenses against floods. The defenses drop connections or packets.
var dropping = []string{"net/ipv4/vs/drop_entry", "net/ipv4/vs/drop_packet", "net/ipv4/vs/secure_tcp"}

// backupOnly makes IPVS ignore all packets while a backup daemon for connection synchronization runs.
const backupOnly = "net/ipv4/vs/backup_only"

func checkBackup(f Facts) []finding.Finding {
	if value := f.Sysctls[backupOnly]; value == "" || value == "0" {
		return nil
	}
	severity, problem := finding.Warning, "set; while a backup daemon for connection synchronization runs, connections to Services are refused"
	if f.Backup {
		severity, problem = finding.Broken, "set, and a backup daemon for connection synchronization is running; IPVS ignores all packets, and connections to Services are refused"
	}
	return finding.One(severity, "IPVS backup", problem, []string{backupOnly + " = 1"}, "set this sysctl to 0, or stop the daemon (`ipvsadm --stop-daemon backup`)")
}

// checkDropping finds active IPVS defenses. They are off by default.
func checkDropping(f Facts) []finding.Finding {
	var on []string
	for _, name := range dropping {
		if value := f.Sysctls[name]; value != "" && value != "0" {
			on = append(on, name+" = "+value)
		}
	}
	if len(on) == 0 {
		return nil
	}
	return finding.One(finding.Warning, "IPVS defense", "on; the kernel drops connections or packets to Services, or expires connections early", on, "sysctl -w SYSCTL=0")
}

// checkModules finds a module that is not loaded at boot.
func checkModules(f Facts) []finding.Finding {
	if f.BootModules == nil || !slices.Contains(f.Modules, bridgeModule) || slices.Contains(f.BootModules, bridgeModule) {
		return nil
	}
	return finding.One(finding.Notice, "kernel module "+bridgeModule, "loaded now, but not loaded at boot; pods on a bridge need it to reach each other through Services",
		[]string{"it is not in /etc/modules-load.d"},
		"unless another program loads it, run `echo "+bridgeModule+" > /etc/modules-load.d/"+bridgeModule+".conf` on the host")
}

// checkReversePath finds strict reverse path filters on a node in several networks: a client's request may arrive on an
// interface other than the one that routes back to the client.
func checkReversePath(f Facts) []finding.Finding {
	var strict, commands []string
	elsewhere := f.Elsewhere
	drops := f.counted[counter{name: "IPReversePathFilter"}]
	if drops == 0 {
		elsewhere = nil // the clients in these networks may use these interfaces
	}
	behind := slices.DeleteFunc(slices.Clone(f.Uplinks), func(name string) bool { return slices.Contains(f.Halves, name) })
	for _, name := range f.routed() {
		if slices.Contains(f.Halves, name) || len(behind) == 1 && name == behind[0] && len(elsewhere) == 0 {
			continue // the routes to the clients behind this interface lead to it
		}
		// The kernel uses the larger value.
		own, all := f.Sysctls[reversePathPrefix+name+"/rp_filter"], f.Sysctls[reversePathPrefix+"all/rp_filter"]
		if max(own, all) == "1" {
			strict = append(strict, fmt.Sprintf("%s%s/rp_filter = %s, all/rp_filter = %s", reversePathPrefix, name, own, all))
			commands = append(commands, "sysctl -w "+finding.Word("net/ipv4/conf/"+name+"/rp_filter=2")) // a name may contain dots
		}
	}
	if len(strict) == 0 {
		return nil
	}
	if len(elsewhere) > 0 {
		strict = append(append(strict, number(int(drops), "packet")+" dropped by reverse path filters (IPReversePathFilter in /proc/net/netstat)"), elsewhere...)
	}
	return finding.One(finding.Warning, "reverse path filter",
		"strict, and this node is in several networks: requests are dropped if the route to the client uses another interface", examples(strict),
		run(commands)+", and make it permanent (/etc/sysctl.d)")
}

// checkIdle compares the IPVS timeout of idle connections with the keepalive time.
func checkIdle(f Facts) []finding.Finding {
	timeout, err := time.ParseDuration(f.setting("ipvs.tcpTimeout", ""))
	if err != nil || timeout == 0 {
		timeout = ipvsTCPTimeout
	}
	seconds, ok := f.number(keepalive)
	if sends := time.Duration(seconds) * time.Second; !ok || sends < timeout {
		return nil
	}
	return finding.One(finding.Notice, "idle connections", fmt.Sprintf("IPVS forgets a TCP connection after %s without packets; the client's next packet is refused", timeout),
		[]string{fmt.Sprintf("%s = %d", keepalive, seconds)},
		fmt.Sprintf("if applications keep idle connections, run `sysctl -w net.ipv4.tcp_keepalive_time=%d`, or raise ipvs.tcpTimeout", int(timeout.Seconds())*2/3))
}
