package config

import (
	"math"
	"strings"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

type setting struct {
	path string // in a kube-ipvs configuration file
	flag string
	// kubeProxy describes whether a KubeProxyConfiguration has the field under the same path.
	kubeProxy kubeProxyField
	// byDefault is the default value in command-line syntax.
	byDefault string
	applies   applies
	value     func(*Settings) value
	// meaning is the flag's help text and the description in the documentation.
	meaning string
	// planning settings affect the wanted state. Their flags also exist in commands that do not run an agent.
	planning bool
}

func (s *setting) kind() kind { return s.value(&Settings{}).kind }

func (s *setting) words(text string) []string {
	if s.kind().isList() {
		return splitList(text)
	}
	return []string{text}
}

type kubeProxyField int

const (
	otherField  kubeProxyField = iota // kube-proxy does not have it
	sameField                         // every value means the same
	zeroIsUnset                       // kube-proxy and kubeadm write the zero value for "not set"
)

// applies states when a change takes effect.
type applies string

const (
	immediately  applies = "immediately"
	afterRestart applies = "after a restart"
)

var ruleBackends = []string{kernel.RulesAuto, kernel.RulesIPTables, kernel.RulesNFTables}

var dataPlanes = []string{kernel.DataPlaneAuto, kernel.DataPlaneIPVS, kernel.DataPlaneNFTables, kernel.DataPlaneUserspace}

// table lists all settings in print order. Settings shared with kube-proxy have its names and, except for strictARP, its
// defaults.
var table = []setting{
	{path: "hostnameOverride", flag: "hostname-override", kubeProxy: zeroIsUnset, applies: afterRestart, planning: true,
		value:   func(s *Settings) value { return anyText(&s.NodeName) },
		meaning: "node name in EndpointSlices and Nodes (default: the host name)"},

	{path: "clientConnection.kubeconfig", flag: "kubeconfig", kubeProxy: zeroIsUnset, applies: afterRestart,
		value:   func(s *Settings) value { return anyText(&s.Kubeconfig) },
		meaning: "file with the address and credentials of the API server (default: those of the pod's ServiceAccount)"},
	{path: "clientConnection.master", flag: "master", applies: afterRestart,
		value:   func(s *Settings) value { return anyText(&s.Master) },
		meaning: "address of the API server; overrides the kubeconfig"},
	{path: "clientConnection.qps", flag: "kube-api-qps", kubeProxy: zeroIsUnset, byDefault: "5", applies: afterRestart,
		value:   func(s *Settings) value { return rate(&s.QPS) },
		meaning: "maximum requests per second to the API server; negative for no limit"},
	{path: "clientConnection.burst", flag: "kube-api-burst", kubeProxy: zeroIsUnset, byDefault: "10", applies: afterRestart,
		value:   func(s *Settings) value { return number(&s.Burst, 1, math.MaxInt32) },
		meaning: "maximum burst of requests to the API server"},
	{path: "manifests", flag: "manifests", applies: afterRestart,
		value:   func(s *Settings) value { return anyText(&s.Manifests) },
		meaning: "directory of Service, EndpointSlice and Node manifests to use instead of an API server"},
	{path: "serviceProxyName", flag: "service-proxy-name", applies: afterRestart, planning: true,
		value: func(s *Settings) value { return labelValue(&s.ServiceProxyName) },
		meaning: "serve only Services whose label service.kubernetes.io/service-proxy-name has this value, " +
			"and leave all others to another proxy (default: serve Services without the label)"},
	{path: "removeStartupTaint", flag: "remove-startup-taint", byDefault: "false", applies: afterRestart,
		value:   func(s *Settings) value { return boolean(&s.RemoveStartupTaint) },
		meaning: "remove the taint kube-ipvs.io/agent-not-ready from this node's Node object after the first complete sync; requires permission to patch nodes"},

	{path: "ipvs.scheduler", flag: "ipvs-scheduler", kubeProxy: zeroIsUnset, byDefault: "rr", applies: immediately, planning: true,
		value:   func(s *Settings) value { return oneOf(&s.Scheduler, model.Schedulers) },
		meaning: "IPVS scheduler of Services without a scheduler annotation: " + strings.Join(model.Schedulers, ", ")},
	{path: "ipvs.syncPeriod", flag: "ipvs-sync-period", kubeProxy: zeroIsUnset, byDefault: "30s", applies: immediately,
		value: func(s *Settings) value {
			return duration(&s.SyncPeriod, "must be at least 1s, because each full sync compares everything with the kernel",
				func(d time.Duration) bool { return d >= time.Second })
		},
		meaning: "interval of full syncs, which compare everything with the kernel and repair drift; up to 5m if they are slow and quick checks are on"},
	{path: "ipvs.minSyncPeriod", flag: "ipvs-min-sync-period", kubeProxy: zeroIsUnset, byDefault: "0s", applies: immediately,
		value: func(s *Settings) value {
			return duration(&s.MinSyncPeriod, "must be 0 (write each change immediately) or more, such as 1s", notNegative)
		},
		meaning: "how long to collect changes before writing them; 0 writes each change immediately, or about every 10 ms during a storm"},
	{path: "ipvs.checkPeriod", flag: "ipvs-check-period", byDefault: "1s", applies: immediately,
		value: func(s *Settings) value {
			return duration(&s.CheckPeriod, "must be 0 (no quick checks), or 100ms to 1m",
				func(d time.Duration) bool { return d == 0 || d >= 100*time.Millisecond && d <= time.Minute })
		},
		meaning: "interval of quick checks, which compare counts with the kernel and start a full sync if another program changed something; 0 disables them"},
	{path: "ipvs.drainTimeout", flag: "drain-timeout", byDefault: "15m", applies: immediately,
		value: func(s *Settings) value {
			return duration(&s.DrainTimeout, "must be 0 (no limit) or more, such as 15m", notNegative)
		},
		meaning: "how long a draining endpoint may keep its open connections; 0 for no limit"},
	{path: "ipvs.strictARP", flag: "ipvs-strict-arp", kubeProxy: sameField, byDefault: "true", applies: immediately, planning: true,
		value:   func(s *Settings) value { return boolean(&s.StrictARP) },
		meaning: "keep other interfaces from answering ARP requests for virtual addresses (arp_ignore=1, arp_announce=2)"},
	{path: "ipvs.trafficCounters", flag: "ipvs-traffic-counters", byDefault: "true", applies: immediately, planning: true,
		value: func(s *Settings) value { return boolean(&s.TrafficCounters) },
		meaning: "update IPVS's counters of packets, bytes and connections, which costs time every two seconds if there are many endpoints; " +
			"false stops them (run_estimation=0, Linux 5.16 or newer)"},
	{path: "ipvs.excludeCIDRs", flag: "ipvs-exclude-cidrs", kubeProxy: zeroIsUnset, applies: immediately, planning: true,
		value:   func(s *Settings) value { return ranges(&s.Excluded) },
		meaning: "address ranges that the agent ignores: it serves, binds and removes nothing there"},
	{path: "ipvs.tcpTimeout", flag: "ipvs-tcp-timeout", kubeProxy: zeroIsUnset, byDefault: "0s", applies: immediately, planning: true,
		value:   func(s *Settings) value { return kernelTimeout(&s.Timeouts.TCP) },
		meaning: "IPVS timeout of idle TCP connections; 0 keeps the kernel's value"},
	{path: "ipvs.tcpFinTimeout", flag: "ipvs-tcpfin-timeout", kubeProxy: zeroIsUnset, byDefault: "0s", applies: immediately, planning: true,
		value:   func(s *Settings) value { return kernelTimeout(&s.Timeouts.TCPFin) },
		meaning: "IPVS timeout of TCP connections after a FIN; 0 keeps the kernel's value"},
	{path: "ipvs.udpTimeout", flag: "ipvs-udp-timeout", kubeProxy: zeroIsUnset, byDefault: "0s", applies: immediately, planning: true,
		value:   func(s *Settings) value { return kernelTimeout(&s.Timeouts.UDP) },
		meaning: "IPVS timeout of UDP flows; 0 keeps the kernel's value"},

	{path: "dataPlane", flag: "data-plane", byDefault: kernel.DataPlaneAuto, applies: afterRestart, planning: true,
		value:   func(s *Settings) value { return oneOf(&s.DataPlane, dataPlanes) },
		meaning: "what balances connections: ipvs, nftables, userspace (see forward.addresses), or auto, which is nftables if the kernel has no IPVS"},
	{path: "rules", flag: "rules", byDefault: kernel.RulesAuto, applies: afterRestart, planning: true,
		value:   func(s *Settings) value { return oneOf(&s.Rules, ruleBackends) },
		meaning: "where to keep sets and rules: iptables (with ipset), nftables, or auto, which is nftables if the node has no iptables or ipset"},
	{path: "addresses", flag: "addresses", byDefault: onInterface, applies: immediately, planning: true,
		value: func(s *Settings) value { return oneOf(&s.Addresses, []string{onInterface, byRoutes}) },
		meaning: "how IPv4 virtual addresses become local: as addresses of kube-ipvs0 (interface), or by routes to it (routes), " +
			"which the kernel adds much faster if there are many thousands"},
	{path: "iptables.masqueradeAll", flag: "masquerade-all", kubeProxy: sameField, byDefault: "false", applies: immediately, planning: true,
		value:   func(s *Settings) value { return boolean(&s.MasqueradeAll) },
		meaning: "masquerade all connections to ClusterIPs"},
	{path: "iptables.masqueradeBit", flag: "iptables-masquerade-bit", kubeProxy: sameField, byDefault: "14", applies: immediately, planning: true,
		value:   func(s *Settings) value { return number(&s.MasqueradeBit, 0, 31) },
		meaning: "bit of the packet mark that requests masquerading, 0 to 31"},
	{path: "iptables.acceptServiceTraffic", flag: "accept-service-traffic", byDefault: "false", applies: immediately, planning: true,
		value:   func(s *Settings) value { return boolean(&s.AcceptServices) },
		meaning: "accept Service traffic in a host firewall that drops by default"},

	{path: "egress.masquerade", flag: "masquerade-pod-egress", byDefault: "false", applies: immediately, planning: true,
		value:   func(s *Settings) value { return boolean(&s.Egress.Masquerade) },
		meaning: "masquerade traffic from pods to addresses outside the cluster; requires the ranges of all pods (--cluster-cidr)"},
	{path: "egress.nonMasqueradeCIDRs", flag: "non-masquerade-cidrs", applies: immediately, planning: true,
		value:   func(s *Settings) value { return ranges(&s.Egress.Except) },
		meaning: "destinations that --masquerade-pod-egress does not apply to; they see the pod's address"},

	{path: "detectLocalMode", flag: "detect-local-mode", kubeProxy: zeroIsUnset, byDefault: localByClusterCIDR, applies: immediately, planning: true,
		value:   func(s *Settings) value { return oneOf(&s.LocalMode, localModes) },
		meaning: "how to distinguish pods, which keep their source address, from other clients: " + strings.Join(localModes, ", ")},
	{path: "clusterCIDR", flag: "cluster-cidr", kubeProxy: zeroIsUnset, applies: immediately, planning: true,
		value:   func(s *Settings) value { return rangePair(&s.ClusterCIDRs) },
		meaning: "address range of the cluster's pods; for dual stack, one range per family, separated by a comma"},
	{path: "detectLocal.bridgeInterface", flag: "pod-bridge-interface", kubeProxy: zeroIsUnset, applies: immediately, planning: true,
		value:   func(s *Settings) value { return interfaceName(&s.PodBridge) },
		meaning: "bridge on which packets from pods arrive, for --detect-local-mode=BridgeInterface"},
	{path: "detectLocal.interfaceNamePrefix", flag: "pod-interface-name-prefix", kubeProxy: zeroIsUnset, applies: immediately, planning: true,
		value:   func(s *Settings) value { return interfacePrefix(&s.PodInterfacePrefix) },
		meaning: "name prefix of the interfaces on which packets from pods arrive, for --detect-local-mode=InterfaceNamePrefix"},

	{path: "nodePortAddresses", flag: "nodeport-addresses", kubeProxy: zeroIsUnset, applies: immediately, planning: true,
		value: func(s *Settings) value { return nodePorts(&s.NodePorts) },
		meaning: "node addresses that serve node ports: a list of ranges, primary (the Node object's first address of each family), " +
			"localhost (127.0.0.1 and ::1), and all (all except loopback addresses, the default)"},
	{path: "reserveNodePorts", flag: "reserve-node-ports", byDefault: "true", applies: afterRestart,
		value: func(s *Settings) value { return boolean(&s.ReserveNodePorts) },
		meaning: "with IPVS, or in user space at the addresses of Services, add the node ports in net.ipv4.ip_local_port_range to net.ipv4.ip_local_reserved_ports, " +
			"so that this node's own connections do not use them as source ports"},
	forwardAddresses,
	{path: "forward.maxConnections", flag: "forward-max-connections", byDefault: "8192", applies: afterRestart,
		value: func(s *Settings) value { return number(&s.Forward.Connections, 1, math.MaxInt32) },
		meaning: "maximum number of TCP connections that the agent's process forwards; it resets further ones. Each uses two file " +
			"descriptors, and up to four more while data waits for a slow receiver"},
	{path: "forward.maxFlows", flag: "forward-max-flows", byDefault: "1024", applies: afterRestart,
		value: func(s *Settings) value { return number(&s.Forward.Flows, 1, math.MaxInt32) },
		meaning: "maximum number of UDP clients that the agent's process forwards, each with 64 KiB of memory; a further client replaces the one that " +
			"has been silent for the longest time"},
	{path: "forward.connectTimeout", flag: "forward-connect-timeout", byDefault: "3s", applies: afterRestart,
		value:   func(s *Settings) value { return longerThanZero(&s.Forward.Connect) },
		meaning: "how long the agent's process waits for a connection to an endpoint before it tries another one"},
	{path: "forward.udpTimeout", flag: "forward-udp-timeout", byDefault: "3m", applies: afterRestart,
		value:   func(s *Settings) value { return longerThanZero(&s.Forward.FlowIdle) },
		meaning: "how long the agent's process remembers a silent UDP client"},
	{path: "externalIPs.allow", flag: "allow-external-ips", byDefault: automatic, applies: immediately, planning: true,
		value:   func(s *Settings) value { return onOffAuto(&s.AllowExternalIPs) },
		meaning: "serve the addresses in spec.externalIPs: true, false, or auto, which is false if the API server is Kubernetes 1.40 or newer"},
	{path: "externalIPs.ranges", flag: "external-ip-ranges", applies: immediately, planning: true,
		value:   func(s *Settings) value { return ranges(&s.ExternalIPRanges) },
		meaning: "ranges that spec.externalIPs must be in (default: any address)"},
	{path: "externalIPs.nodeAddresses", flag: "external-ips-at-node-addresses", byDefault: "guarded", applies: immediately, planning: true,
		value: func(s *Settings) value { return oneOf(&s.ExternalIPAtNode, []string{"guarded", "all", "none"}) },
		meaning: "ports to serve at external IPs that are the node's own addresses: guarded (all except ports that the node needs, listens on or connects from), " +
			"all, or none"},

	{path: "conntrack.maxPerCore", flag: "conntrack-max-per-core", kubeProxy: sameField, byDefault: "32768", applies: immediately, planning: true,
		value:   func(s *Settings) value { return number(&s.Conntrack.MaxPerCore, 0, math.MaxInt32) },
		meaning: "limit on tracked connections per CPU, at most 1048576 in total; 0 keeps the kernel's limit"},
	{path: "conntrack.min", flag: "conntrack-min", kubeProxy: sameField, byDefault: "131072", applies: immediately, planning: true,
		value:   func(s *Settings) value { return number(&s.Conntrack.Min, 0, math.MaxInt32) },
		meaning: "minimum limit on tracked connections, regardless of the number of CPUs"},
	{path: "conntrack.tcpEstablishedTimeout", flag: "conntrack-tcp-timeout-established", kubeProxy: sameField,
		byDefault: "24h", applies: immediately, planning: true,
		value:   func(s *Settings) value { return kernelTimeout(&s.Conntrack.TCPEstablished) },
		meaning: "conntrack timeout of idle established TCP connections; 0 keeps the kernel's value"},
	{path: "conntrack.tcpCloseWaitTimeout", flag: "conntrack-tcp-timeout-close-wait", kubeProxy: sameField,
		byDefault: "1h", applies: immediately, planning: true,
		value:   func(s *Settings) value { return kernelTimeout(&s.Conntrack.TCPCloseWait) },
		meaning: "conntrack timeout of TCP connections in CLOSE_WAIT; 0 keeps the kernel's value"},
	{path: "conntrack.tcpBeLiberal", flag: "conntrack-tcp-be-liberal", kubeProxy: sameField, byDefault: "false", applies: immediately, planning: true,
		value:   func(s *Settings) value { return boolean(&s.Conntrack.TCPBeLiberal) },
		meaning: "tolerate TCP packets outside the window instead of dropping them"},
	{path: "conntrack.udpTimeout", flag: "conntrack-udp-timeout", kubeProxy: zeroIsUnset, byDefault: "0s", applies: immediately, planning: true,
		value:   func(s *Settings) value { return kernelTimeout(&s.Conntrack.UDP) },
		meaning: "conntrack timeout of UDP flows without a reply; 0 keeps the kernel's value"},
	{path: "conntrack.udpStreamTimeout", flag: "conntrack-udp-timeout-stream", kubeProxy: zeroIsUnset, byDefault: "0s", applies: immediately, planning: true,
		value:   func(s *Settings) value { return kernelTimeout(&s.Conntrack.UDPStream) },
		meaning: "conntrack timeout of UDP flows with replies; 0 keeps the kernel's value"},

	{path: "healthzBindAddress", flag: "healthz-bind-address", kubeProxy: zeroIsUnset, byDefault: "0.0.0.0:10256", applies: afterRestart,
		value:   func(s *Settings) value { return listenAddress(&s.HealthAddress) },
		meaning: "IP address and port of the health server (/healthz, /livez, /readyz); empty disables it"},
	{path: "metricsBindAddress", flag: "metrics-bind-address", kubeProxy: zeroIsUnset, byDefault: "127.0.0.1:10249", applies: afterRestart,
		value:   func(s *Settings) value { return listenAddress(&s.MetricsAddress) },
		meaning: "IP address and port of the metrics server (/metrics, /proxyMode); empty disables it"},
	{path: "enableProfiling", flag: "profiling", kubeProxy: sameField, byDefault: "false", applies: afterRestart,
		value:   func(s *Settings) value { return boolean(&s.Profiling) },
		meaning: "serve /debug/pprof/ on the metrics server"},
	{path: "metrics.servicePorts", flag: "metrics-service-ports", byDefault: "0", applies: afterRestart,
		value:   func(s *Settings) value { return number(&s.MetricsServicePorts, 0, math.MaxInt32) },
		meaning: "maximum number of Service ports with traffic metrics; 0 disables them"},
	{path: "metrics.endpoints", flag: "metrics-endpoints", byDefault: "0", applies: afterRestart,
		value:   func(s *Settings) value { return number(&s.MetricsEndpoints, 0, math.MaxInt32) },
		meaning: "maximum number of endpoints with traffic metrics; 0 disables them"},
	{path: "statusSocket", flag: "status-socket", byDefault: StatusSocket, applies: afterRestart,
		value:   func(s *Settings) value { return socketPath(&s.StatusSocket) },
		meaning: "Unix socket for the commands that inspect this node, open only to root; empty disables it"},

	{path: "snapshot.file", flag: "snapshot-file", applies: afterRestart,
		value:   func(s *Settings) value { return filePath(&s.SnapshotFile) },
		meaning: "file with the last known Services and endpoints, served if the API server is unavailable when the node boots; empty disables it"},
	{path: "snapshot.maxAge", flag: "snapshot-max-age", byDefault: "24h", applies: afterRestart,
		value:   func(s *Settings) value { return longerThanZero(&s.SnapshotMaxAge) },
		meaning: "maximum age at which the agent still uses the snapshot"},

	{path: "logging.level", flag: "log-level", byDefault: "info", applies: immediately,
		value:   func(s *Settings) value { return oneOf(&s.LogLevel, []string{"debug", "info", "warn", "error"}) },
		meaning: "log level: debug, info, warn or error"},
	{path: "logging.format", flag: "log-format", kubeProxy: zeroIsUnset, byDefault: "text", applies: afterRestart,
		value:   func(s *Settings) value { return oneOf(&s.LogFormat, []string{"text", "json"}) },
		meaning: "log format: text or json"},
	{path: "oomScoreAdj", flag: "oom-score-adj", kubeProxy: sameField, byDefault: "-999", applies: afterRestart,
		value:   func(s *Settings) value { return number(&s.OOMScoreAdj, -1000, 1000) },
		meaning: "OOM score adjustment of the agent, -1000 (never killed) to 1000"},
}

func notNegative(d time.Duration) bool { return d >= 0 }

func rowOf(path string) *setting {
	for i := range table {
		if table[i].path == path {
			return &table[i]
		}
	}
	panic("no setting " + path)
}
