package config

import (
	"math"
	"strings"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// setting is one row of the table.
type setting struct {
	path string // in our file
	flag string
	// theirs is the field of kube-proxy's configuration that means the same; empty if there is none.
	theirs field
	// usual is the default, as on a command line.
	usual string
	when  when
	// value finds the setting's place.
	value func(*Settings) value
	// meaning is what the flag's help says, and the documentation.
	meaning string
	// planning settings decide the wanted state: commands that need no agent have their flags, too.
	planning bool
}

// field is one of kube-proxy's.
type field struct {
	path string
	// blank says that the zero value is what kube-proxy, and kubeadm, write for "not set".
	blank bool
}

// when a change of a setting in the file takes effect.
type when string

const (
	atOnce  when = "at once"
	restart when = "restart"
)

// table of all settings, in the order of every output. Where kube-proxy has a setting, it has kube-proxy's names and default.
var table = []setting{
	{path: "hostnameOverride", flag: "hostname-override", theirs: field{"hostnameOverride", true}, when: restart, planning: true,
		value:   func(s *Settings) value { return anyText(&s.NodeName) },
		meaning: "name of this node in EndpointSlices and Nodes (default: the host name)"},

	{path: "clientConnection.kubeconfig", flag: "kubeconfig", theirs: field{"clientConnection.kubeconfig", true}, when: restart,
		value:   func(s *Settings) value { return anyText(&s.Kubeconfig) },
		meaning: "file with the API server's address and credentials (default: those of the pod's ServiceAccount)"},
	{path: "clientConnection.master", flag: "master", when: restart,
		value:   func(s *Settings) value { return anyText(&s.Master) },
		meaning: "address of the API server, overriding the one in the kubeconfig"},
	{path: "clientConnection.qps", flag: "kube-api-qps", theirs: field{"clientConnection.qps", true}, usual: "5", when: restart,
		value:   func(s *Settings) value { return rate(&s.QPS) },
		meaning: "requests per second to the API server; negative for no limit"},
	{path: "clientConnection.burst", flag: "kube-api-burst", theirs: field{"clientConnection.burst", true}, usual: "10", when: restart,
		value:   func(s *Settings) value { return number(&s.Burst, 1, math.MaxInt32) },
		meaning: "requests to the API server that may be made at once"},
	{path: "manifests", flag: "manifests", when: restart,
		value:   func(s *Settings) value { return anyText(&s.Manifests) },
		meaning: "directory of Service, EndpointSlice and Node manifests to serve instead of an API server"},
	{path: "serviceProxyName", flag: "service-proxy-name", when: restart, planning: true,
		value: func(s *Settings) value { return labelValue(&s.ServiceProxyName) },
		meaning: "serve the Services whose label service.kubernetes.io/service-proxy-name is this, " +
			"and leave all others to the proxy beside (default: serve those without the label)"},

	{path: "ipvs.scheduler", flag: "ipvs-scheduler", theirs: field{"ipvs.scheduler", true}, usual: "rr", when: atOnce, planning: true,
		value:   func(s *Settings) value { return oneOf(&s.Scheduler, model.Schedulers) },
		meaning: "IPVS scheduler of every Service: " + strings.Join(model.Schedulers, ", ")},
	{path: "ipvs.syncPeriod", flag: "ipvs-sync-period", theirs: field{"ipvs.syncPeriod", true}, usual: "30s", when: atOnce,
		value: func(s *Settings) value {
			return duration(&s.SyncPeriod, time.Second, "at least 1s; every period reads the whole kernel state")
		},
		meaning: "how often the whole kernel state is read and repaired though nothing has changed"},
	{path: "ipvs.minSyncPeriod", flag: "ipvs-min-sync-period", theirs: field{"ipvs.minSyncPeriod", true}, usual: "0s", when: atOnce,
		value: func(s *Settings) value {
			return duration(&s.MinSyncPeriod, 0, "0 (every change at once) or more, such as 1s")
		},
		meaning: "how long changes are collected before they are written; 0 writes each at once"},
	{path: "ipvs.drainTimeout", flag: "drain-timeout", usual: "15m", when: atOnce,
		value:   func(s *Settings) value { return duration(&s.DrainTimeout, 0, "0 (no limit) or more, such as 15m") },
		meaning: "how long an endpoint that takes no new connections may keep its open ones; 0 means until they end"},
	{path: "ipvs.strictARP", flag: "ipvs-strict-arp", theirs: field{"ipvs.strictARP", false}, usual: "true", when: atOnce, planning: true,
		value:   func(s *Settings) value { return truth(&s.StrictARP) },
		meaning: "keep other interfaces from answering ARP requests for virtual addresses (arp_ignore=1, arp_announce=2)"},
	{path: "ipvs.excludeCIDRs", flag: "ipvs-exclude-cidrs", theirs: field{"ipvs.excludeCIDRs", true}, when: atOnce, planning: true,
		value:   func(s *Settings) value { return ranges(&s.Excluded) },
		meaning: "ranges left to others: nothing in them is served, bound or removed"},
	{path: "ipvs.tcpTimeout", flag: "ipvs-tcp-timeout", theirs: field{"ipvs.tcpTimeout", true}, usual: "0s", when: atOnce, planning: true,
		value:   func(s *Settings) value { return timeout(&s.Timeouts.TCP) },
		meaning: "how long IPVS remembers an idle TCP connection; 0 leaves it as it is"},
	{path: "ipvs.tcpFinTimeout", flag: "ipvs-tcpfin-timeout", theirs: field{"ipvs.tcpFinTimeout", true}, usual: "0s", when: atOnce, planning: true,
		value:   func(s *Settings) value { return timeout(&s.Timeouts.TCPFin) },
		meaning: "how long IPVS remembers a TCP connection after a FIN; 0 leaves it as it is"},
	{path: "ipvs.udpTimeout", flag: "ipvs-udp-timeout", theirs: field{"ipvs.udpTimeout", true}, usual: "0s", when: atOnce, planning: true,
		value:   func(s *Settings) value { return timeout(&s.Timeouts.UDP) },
		meaning: "how long IPVS remembers a UDP flow; 0 leaves it as it is"},

	{path: "iptables.masqueradeAll", flag: "masquerade-all", theirs: field{"iptables.masqueradeAll", false}, usual: "false", when: atOnce, planning: true,
		value:   func(s *Settings) value { return truth(&s.MasqueradeAll) },
		meaning: "masquerade every connection to a ClusterIP"},
	{path: "iptables.masqueradeBit", flag: "iptables-masquerade-bit", theirs: field{"iptables.masqueradeBit", false}, usual: "14", when: atOnce, planning: true,
		value:   func(s *Settings) value { return number(&s.MasqueradeBit, 0, 31) },
		meaning: "bit of the packet mark that asks for masquerading, 0 to 31"},
	{path: "iptables.acceptServiceTraffic", flag: "accept-service-traffic", usual: "false", when: atOnce, planning: true,
		value:   func(s *Settings) value { return truth(&s.AcceptServices) },
		meaning: "let the packets of Services through a host firewall that drops by default"},

	{path: "egress.masquerade", flag: "masquerade-pod-egress", usual: "false", when: atOnce, planning: true,
		value:   func(s *Settings) value { return truth(&s.Egress.Masquerade) },
		meaning: "masquerade what pods send to the world outside the cluster; needs the ranges of all pods (--cluster-cidr)"},
	{path: "egress.nonMasqueradeCIDRs", flag: "non-masquerade-cidrs", when: atOnce, planning: true,
		value:   func(s *Settings) value { return ranges(&s.Egress.Except) },
		meaning: "destinations that see the pod's own address in spite of --masquerade-pod-egress"},

	{path: "detectLocalMode", flag: "detect-local-mode", theirs: field{"detectLocalMode", true}, usual: localByClusterCIDR, when: atOnce, planning: true,
		value:   func(s *Settings) value { return oneOf(&s.LocalMode, localModes) },
		meaning: "how to tell pods, which keep their source address, from other clients: " + strings.Join(localModes, ", ")},
	{path: "clusterCIDR", flag: "cluster-cidr", theirs: field{"clusterCIDR", true}, when: atOnce, planning: true,
		value:   func(s *Settings) value { return rangePair(&s.ClusterCIDRs) },
		meaning: "range of the cluster's pods; with two families two ranges, separated by a comma"},
	{path: "detectLocal.bridgeInterface", flag: "pod-bridge-interface", theirs: field{"detectLocal.bridgeInterface", true}, when: atOnce, planning: true,
		value:   func(s *Settings) value { return interfaceName(&s.PodBridge) },
		meaning: "bridge that the pods' packets arrive on, for --detect-local-mode=BridgeInterface"},
	{path: "detectLocal.interfaceNamePrefix", flag: "pod-interface-name-prefix", theirs: field{"detectLocal.interfaceNamePrefix", true}, when: atOnce, planning: true,
		value:   func(s *Settings) value { return interfaceName(&s.PodInterfacePrefix) },
		meaning: "start of the names of the interfaces that the pods' packets arrive on, for --detect-local-mode=InterfaceNamePrefix"},

	{path: "nodePortAddresses", flag: "nodeport-addresses", theirs: field{"nodePortAddresses", true}, when: atOnce, planning: true,
		value:   func(s *Settings) value { return nodePorts(&s.NodePorts) },
		meaning: "ranges of the node's addresses that serve node ports, or primary for the Node's own (default: all)"},
	{path: "externalIPs.allow", flag: "allow-external-ips", usual: "true", when: atOnce, planning: true,
		value:   func(s *Settings) value { return truth(&s.AllowExternalIPs) },
		meaning: "serve the addresses in spec.externalIPs"},
	{path: "externalIPs.ranges", flag: "external-ip-ranges", when: atOnce, planning: true,
		value:   func(s *Settings) value { return ranges(&s.ExternalIPRanges) },
		meaning: "ranges that spec.externalIPs must be in (default: any address)"},

	{path: "conntrack.maxPerCore", flag: "conntrack-max-per-core", theirs: field{"conntrack.maxPerCore", false}, usual: "32768", when: atOnce, planning: true,
		value:   func(s *Settings) value { return number(&s.Conntrack.MaxPerCore, 0, math.MaxInt32) },
		meaning: "tracked connections per CPU, up to 1048576 in all; 0 leaves the limit as it is"},
	{path: "conntrack.min", flag: "conntrack-min", theirs: field{"conntrack.min", false}, usual: "131072", when: atOnce, planning: true,
		value:   func(s *Settings) value { return number(&s.Conntrack.Min, 0, math.MaxInt32) },
		meaning: "least limit of tracked connections, whatever the number of CPUs"},
	{path: "conntrack.tcpEstablishedTimeout", flag: "conntrack-tcp-timeout-established", theirs: field{"conntrack.tcpEstablishedTimeout", false},
		usual: "24h", when: atOnce, planning: true,
		value:   func(s *Settings) value { return timeout(&s.Conntrack.TCPEstablished) },
		meaning: "how long an idle open TCP connection is tracked; 0 leaves it as it is"},
	{path: "conntrack.tcpCloseWaitTimeout", flag: "conntrack-tcp-timeout-close-wait", theirs: field{"conntrack.tcpCloseWaitTimeout", false},
		usual: "1h", when: atOnce, planning: true,
		value:   func(s *Settings) value { return timeout(&s.Conntrack.TCPCloseWait) },
		meaning: "how long a TCP connection in CLOSE_WAIT is tracked; 0 leaves it as it is"},
	{path: "conntrack.tcpBeLiberal", flag: "conntrack-tcp-be-liberal", theirs: field{"conntrack.tcpBeLiberal", false}, usual: "false", when: atOnce, planning: true,
		value:   func(s *Settings) value { return truth(&s.Conntrack.TCPBeLiberal) },
		meaning: "tolerate TCP packets outside the window instead of dropping them"},
	{path: "conntrack.udpTimeout", flag: "conntrack-udp-timeout", theirs: field{"conntrack.udpTimeout", true}, usual: "0s", when: atOnce, planning: true,
		value:   func(s *Settings) value { return timeout(&s.Conntrack.UDP) },
		meaning: "how long a UDP flow without a reply is tracked; 0 leaves it as it is"},
	{path: "conntrack.udpStreamTimeout", flag: "conntrack-udp-timeout-stream", theirs: field{"conntrack.udpStreamTimeout", true}, usual: "0s", when: atOnce, planning: true,
		value:   func(s *Settings) value { return timeout(&s.Conntrack.UDPStream) },
		meaning: "how long a UDP flow with replies is tracked; 0 leaves it as it is"},

	{path: "healthzBindAddress", flag: "healthz-bind-address", theirs: field{"healthzBindAddress", true}, usual: "0.0.0.0:10256", when: restart,
		value:   func(s *Settings) value { return listen(&s.HealthAddress) },
		meaning: "IP address and port of the health server (/healthz, /livez, /readyz); empty for none"},
	{path: "metricsBindAddress", flag: "metrics-bind-address", theirs: field{"metricsBindAddress", true}, usual: "127.0.0.1:10249", when: restart,
		value:   func(s *Settings) value { return listen(&s.MetricsAddress) },
		meaning: "IP address and port of the metrics server (/metrics, /proxyMode); empty for none"},
	{path: "enableProfiling", flag: "profiling", theirs: field{"enableProfiling", false}, usual: "false", when: restart,
		value:   func(s *Settings) value { return truth(&s.Profiling) },
		meaning: "serve /debug/pprof/ on the metrics server"},
	{path: "metrics.servicePorts", flag: "metrics-service-ports", usual: "1000", when: restart,
		value:   func(s *Settings) value { return number(&s.MetricsServicePorts, 0, math.MaxInt32) },
		meaning: "of how many ports of Services metrics tell connections, packets and bytes, at most; 0 for none"},
	{path: "metrics.endpoints", flag: "metrics-endpoints", usual: "0", when: restart,
		value:   func(s *Settings) value { return number(&s.MetricsEndpoints, 0, math.MaxInt32) },
		meaning: "of how many endpoints metrics tell the same as of ports of Services, at most; 0 for none"},
	{path: "statusSocket", flag: "status-socket", usual: StatusSocket, when: restart,
		value:   func(s *Settings) value { return socketPath(&s.StatusSocket) },
		meaning: "unix socket on which the agent answers services, conns, status and explain, to root only; empty for none"},

	{path: "logging.level", flag: "log-level", usual: "info", when: atOnce,
		value:   func(s *Settings) value { return oneOf(&s.LogLevel, []string{"debug", "info", "warn", "error"}) },
		meaning: "debug, info, warn or error"},
	{path: "logging.format", flag: "log-format", theirs: field{"logging.format", true}, usual: "text", when: restart,
		value:   func(s *Settings) value { return oneOf(&s.LogFormat, []string{"text", "json"}) },
		meaning: "text or json"},
	{path: "oomScoreAdj", flag: "oom-score-adj", theirs: field{"oomScoreAdj", false}, usual: "-999", when: restart,
		value:   func(s *Settings) value { return number(&s.OOMScoreAdj, -1000, 1000) },
		meaning: "how the kernel rates the agent when memory runs out, -1000 (never killed) to 1000"},
}

// rowOf finds the row of a path that is known to exist.
func rowOf(path string) *setting {
	for i := range table {
		if table[i].path == path {
			return &table[i]
		}
	}
	panic("the table of settings has no " + path)
}
