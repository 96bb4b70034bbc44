package config

import (
	"fmt"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// conflict is an invalid combination of settings that are valid individually.
type conflict struct {
	between []string // paths of the settings
	found   func(*Settings) bool
	remedy  string
}

var conflicts = append([]conflict{
	{[]string{"manifests", "clientConnection.kubeconfig"},
		func(s *Settings) bool { return s.Manifests != "" && s.Kubeconfig != "" },
		"there can be only one source; remove one of them"},
	{[]string{"manifests", "clientConnection.master"},
		func(s *Settings) bool { return s.Manifests != "" && s.Master != "" },
		"there can be only one source; remove one of them"},
	{[]string{"manifests", "removeStartupTaint"},
		func(s *Settings) bool { return s.Manifests != "" && s.RemoveStartupTaint },
		"the taint is on a Node object of an API server; remove one of them"},
	{[]string{"ipvs.minSyncPeriod", "ipvs.syncPeriod"},
		func(s *Settings) bool { return s.MinSyncPeriod > s.SyncPeriod },
		"the first must not be longer than the second"},
	{[]string{"ipvs.trafficCounters", "metrics.servicePorts"}, func(s *Settings) bool { return s.countersStopped() && s.MetricsServicePorts > 0 }, stoppedMetrics},
	{[]string{"ipvs.trafficCounters", "metrics.endpoints"}, func(s *Settings) bool { return s.countersStopped() && s.MetricsEndpoints > 0 }, stoppedMetrics},
	{[]string{"rules", "iptables.acceptServiceTraffic"},
		func(s *Settings) bool { return s.Rules == kernel.RulesNFTables && s.AcceptServices },
		"in nftables, a rule cannot override a drop in another table; allow Service traffic in the host's firewall, or use iptables"},
	{[]string{"dataPlane", "iptables.acceptServiceTraffic"},
		func(s *Settings) bool { return s.DataPlane == kernel.DataPlaneNFTables && s.AcceptServices },
		"in nftables, a rule cannot override a drop in another table; allow Service traffic in the host's firewall, or use IPVS and iptables"},
	{[]string{"dataPlane", "rules"},
		func(s *Settings) bool {
			return s.DataPlane == kernel.DataPlaneNFTables && s.Rules == kernel.RulesIPTables
		},
		"rules must be in nftables, too, if nftables balances connections; use --rules=auto"},
	{[]string{"detectLocalMode", "detectLocal.bridgeInterface"},
		func(s *Settings) bool { return s.LocalMode == localByBridge && s.PodBridge == "" },
		missingInterface},
	{[]string{"detectLocalMode", "detectLocal.interfaceNamePrefix"},
		func(s *Settings) bool { return s.LocalMode == localByInterfacePrefix && s.PodInterfacePrefix == "" },
		missingInterface},
	{[]string{"egress.masquerade", "detectLocalMode", "clusterCIDR"},
		func(s *Settings) bool {
			return s.Egress.Masquerade && (s.LocalMode != localByClusterCIDR || len(s.ClusterCIDRs) == 0)
		},
		"the ranges of all pods are required; use the mode ClusterCIDR with a range, because other modes detect only this node's pods"},
	{[]string{"externalIPs.allow", "externalIPs.ranges"},
		func(s *Settings) bool { return s.AllowExternalIPs == "false" && len(s.ExternalIPRanges) > 0 },
		"ranges have no effect if external IPs are not allowed; change one of them"},
	{[]string{"healthzBindAddress", "metricsBindAddress"},
		func(s *Settings) bool { return s.HealthAddress != "" && s.HealthAddress == s.MetricsAddress },
		"must be two different addresses or ports"},
	{[]string{"enableProfiling", "metricsBindAddress"},
		func(s *Settings) bool { return s.Profiling && s.MetricsAddress == "" },
		"profiles are served by the metrics server; set its address, such as 127.0.0.1:10249"},
}, forwardConflicts...)

const stoppedMetrics = "metrics of traffic come from IPVS's counters, which would stand still; change one of them"

// countersStopped reports whether IPVS's counters stand still. With auto, IPVS usually balances.
func (s *Settings) countersStopped() bool {
	return !s.TrafficCounters && (s.DataPlane == kernel.DataPlaneIPVS || s.DataPlane == kernel.DataPlaneAuto)
}

var missingInterface = fmt.Sprintf("the interface name must have 1 to %d characters", maxInterfaceName)

func (l *loading) checkConflicts() {
	invalid := func(path string) bool { return l.invalid[path] }
	for _, c := range conflicts {
		if slices.ContainsFunc(c.between, invalid) || !c.found(&l.settings) {
			continue
		}
		text := l.describe(c.between[0])
		for _, path := range c.between[1:] {
			text += " and " + l.describe(path)
		}
		l.errors = append(l.errors, message{text: text + ": " + c.remedy})
	}
}

func (l *loading) describe(path string) string {
	row := rowOf(path)
	from := l.inputs[path].place
	switch {
	case from.origin == "" && l.hasFile:
		from = place{origin: fromDefault, field: path}
	case from.origin == "":
		from = place{origin: "--" + row.flag}
	}
	v := row.value(&l.settings)
	return from.String() + " " + quote(v.kind, v.words()...)
}
