package config

import (
	"fmt"
	"strings"
)

// agreement is what several settings have to be together.
type agreement struct {
	// of names the settings concerned; none is looked at if one of them is wrong in itself.
	of []string
	// broken returns the settings to name in the error, and what is wrong; no settings if all is well.
	broken func(*Settings) (name []string, why string)
}

var agreements = []agreement{
	{of: []string{"manifests", "clientConnection.kubeconfig", "clientConnection.master"},
		broken: func(s *Settings) ([]string, string) {
			const why = "two sources; give one of them"
			switch {
			case s.Manifests != "" && s.Kubeconfig != "":
				return []string{"manifests", "clientConnection.kubeconfig"}, why
			case s.Manifests != "" && s.Master != "":
				return []string{"manifests", "clientConnection.master"}, why
			}
			return nil, ""
		}},
	{of: []string{"ipvs.minSyncPeriod", "ipvs.syncPeriod"},
		broken: func(s *Settings) ([]string, string) {
			if s.MinSyncPeriod <= s.SyncPeriod {
				return nil, ""
			}
			return []string{"ipvs.minSyncPeriod", "ipvs.syncPeriod"}, "want the first no longer than the second"
		}},
	{of: []string{"detectLocalMode", "detectLocal.bridgeInterface"},
		broken: func(s *Settings) ([]string, string) {
			if s.LocalMode != localByBridge || s.PodBridge != "" {
				return nil, ""
			}
			return []string{"detectLocalMode", "detectLocal.bridgeInterface"}, missingInterface
		}},
	{of: []string{"detectLocalMode", "detectLocal.interfaceNamePrefix"},
		broken: func(s *Settings) ([]string, string) {
			if s.LocalMode != localByInterfacePrefix || s.PodInterfacePrefix != "" {
				return nil, ""
			}
			return []string{"detectLocalMode", "detectLocal.interfaceNamePrefix"}, missingInterface
		}},
	{of: []string{"egress.masquerade", "detectLocalMode", "clusterCIDR"},
		broken: func(s *Settings) ([]string, string) {
			if !s.Egress.Masquerade || s.LocalMode == localByClusterCIDR && len(s.ClusterCIDRs) > 0 {
				return nil, ""
			}
			return []string{"egress.masquerade", "detectLocalMode", "clusterCIDR"},
				"want the ranges of all pods, from the mode ClusterCIDR with a range; other modes know this node's pods only"
		}},
	{of: []string{"externalIPs.allow", "externalIPs.ranges"},
		broken: func(s *Settings) ([]string, string) {
			if s.AllowExternalIPs || len(s.ExternalIPRanges) == 0 {
				return nil, ""
			}
			return []string{"externalIPs.allow", "externalIPs.ranges"}, "want ranges only where external IPs are allowed"
		}},
	{of: []string{"healthzBindAddress", "metricsBindAddress"},
		broken: func(s *Settings) ([]string, string) {
			if s.HealthAddress == "" || s.HealthAddress != s.MetricsAddress {
				return nil, ""
			}
			return []string{"healthzBindAddress", "metricsBindAddress"}, "want two addresses or ports"
		}},
	{of: []string{"enableProfiling", "metricsBindAddress"},
		broken: func(s *Settings) ([]string, string) {
			if !s.Profiling || s.MetricsAddress != "" {
				return nil, ""
			}
			return []string{"enableProfiling", "metricsBindAddress"}, "want an address, such as 127.0.0.1:10249, to serve profiles on"
		}},
}

var missingInterface = fmt.Sprintf("want the name of an interface, 1 to %d characters", maxInterfaceName)

// agree checks what settings have to be together.
func (l *loading) agree() {
	for _, a := range agreements {
		if l.anyBad(a.of) {
			continue
		}
		name, why := a.broken(&l.settings)
		if name == nil {
			continue
		}
		var shown []string
		for _, path := range name {
			shown = append(shown, l.show(path))
		}
		l.wrong = append(l.wrong, remark{text: strings.Join(shown, " and ") + ": " + why})
	}
}

func (l *loading) anyBad(paths []string) bool {
	for _, path := range paths {
		if l.bad[path] {
			return true
		}
	}
	return false
}

// show names a setting with its value and where it was given.
func (l *loading) show(path string) string {
	row := rowOf(path)
	g, ok := l.given[path]
	switch {
	case !ok && l.inFile:
		g = given{field: path}
	case !ok:
		g = given{flag: row.flag}
	}
	v := row.value(&l.settings)
	return g.at(len(g.lines)) + " " + quote(v.kind, v.words()...)
}
