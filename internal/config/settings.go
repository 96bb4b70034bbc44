package config

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/forward"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// Settings contains the values of all settings, which table.go describes.
type Settings struct {
	NodeName string

	Kubeconfig, Master, Manifests string
	QPS                           float64
	Burst                         int
	ServiceProxyName              string
	RemoveStartupTaint            bool

	Scheduler     string
	SyncPeriod    time.Duration
	MinSyncPeriod time.Duration
	CheckPeriod   time.Duration
	DrainTimeout  time.Duration
	StrictARP     bool
	// TrafficCounters is false if IPVS does not count packets and bytes.
	TrafficCounters bool
	Excluded        []netip.Prefix
	Timeouts        kernel.Timeouts

	DataPlane      string
	Rules          string
	Addresses      string
	MasqueradeAll  bool
	MasqueradeBit  int
	AcceptServices bool
	Egress         compile.Egress

	LocalMode          string
	ClusterCIDRs       []netip.Prefix
	PodBridge          string
	PodInterfacePrefix string

	NodePorts        compile.NodePortAddresses
	ReserveNodePorts bool
	Forward          forward.Limits
	ForwardAddresses string
	AllowExternalIPs string
	ExternalIPRanges []netip.Prefix
	ExternalIPAtNode string

	Conntrack Conntrack

	HealthAddress, MetricsAddress string
	MetricsServicePorts           int
	MetricsEndpoints              int
	Profiling                     bool
	StatusSocket                  string
	SnapshotFile                  string
	SnapshotMaxAge                time.Duration

	LogLevel, LogFormat string
	OOMScoreAdj         int
}

// StatusSocket is the default path of the status socket, for the agent and for the commands that query it.
const StatusSocket = "/run/kube-ipvs/kube-ipvs.sock"

const (
	localByClusterCIDR     = "ClusterCIDR"
	localByNodeCIDR        = "NodeCIDR"
	localByBridge          = "BridgeInterface"
	localByInterfacePrefix = "InterfaceNamePrefix"
)

// The values of the setting addresses.
const (
	onInterface = "interface"
	byRoutes    = "routes"
)

var bindings = map[string]kernel.Binding{onInterface: kernel.OnDevice, byRoutes: kernel.Routed}

var localModes = []string{localByClusterCIDR, localByNodeCIDR, localByBridge, localByInterfacePrefix}

// Compile returns the settings that determine how Services are compiled on this machine.
func (s *Settings) Compile() compile.Settings { return s.compile(onlineCPUs()) }

func (s *Settings) compile(cpus int) compile.Settings {
	return compile.Settings{
		Scheduler:       s.Scheduler,
		MasqueradeAll:   s.MasqueradeAll,
		MasqueradeBit:   uint8(s.MasqueradeBit),
		Local:           s.localDetector(),
		LocalByNodeCIDR: s.LocalMode == localByNodeCIDR,
		NodePorts:       s.NodePorts,
		ExternalIPs:     s.externalIPs(),
		AgentPorts:      s.agentPorts(),
		Excluded:        s.Excluded,
		Egress:          s.Egress,
		AcceptServices:  s.AcceptServices,
		SideBySide:      s.ServiceProxyName != "",
		Binding:         bindings[s.Addresses],
		StrictARP:       s.StrictARP,
		StopCounters:    !s.TrafficCounters,
		Sysctls:         s.Conntrack.sysctls(cpus),
		Timeouts:        s.Timeouts,
	}
}

func (s *Settings) externalIPs() compile.ExternalIPs {
	return compile.ExternalIPs{
		Off: s.AllowExternalIPs == "false", ByVersion: s.AllowExternalIPs == automatic,
		Allowed: s.ExternalIPRanges, AtNode: atNode[s.ExternalIPAtNode],
	}
}

var atNode = map[string]compile.AtNode{"guarded": compile.AtNodeGuarded, "all": compile.AtNodeAll, "none": compile.AtNodeNone}

func (s *Settings) agentPorts() (ports []uint16) {
	for _, address := range []string{s.HealthAddress, s.MetricsAddress} {
		if at, err := netip.ParseAddrPort(address); err == nil {
			ports = append(ports, at.Port())
		}
	}
	return ports
}

func (s *Settings) localDetector() compile.LocalDetector {
	switch s.LocalMode {
	case localByClusterCIDR:
		return compile.LocalDetector{CIDRs: s.ClusterCIDRs}
	case localByBridge:
		return compile.LocalDetector{Bridge: s.PodBridge}
	case localByInterfacePrefix:
		return compile.LocalDetector{InterfacePrefix: s.PodInterfacePrefix}
	}
	return compile.LocalDetector{}
}

// Hostname returns the name of this node: the configured one, or the host name.
func (s *Settings) Hostname() (string, error) {
	name := s.NodeName
	if name == "" {
		host, err := os.Hostname()
		if err != nil {
			return "", fmt.Errorf("read the host name: %w. Use --hostname-override", err)
		}
		name = host
	}
	return strings.ToLower(strings.TrimSpace(name)), nil
}
