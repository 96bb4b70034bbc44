// Package config reads flags into a validated configuration: nothing behind it checks again.
//
// May import: the standard library, pflag, and of ours model (names) and compile (what it configures).
package config

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// Flags are the settings as a user writes them. Names and defaults are kube-proxy's where it has the same setting.
type Flags struct {
	Kubeconfig, Master, Manifests string
	NodeName                      string

	Scheduler     string
	SyncPeriod    time.Duration
	DrainTimeout  time.Duration
	MasqueradeAll bool
	MasqueradeBit int

	DetectLocalMode    string
	ClusterCIDR        string
	PodBridge          string
	PodInterfacePrefix string

	HealthAddress, MetricsAddress string
	Profiling                     bool

	LogLevel, LogFormat string
}

// AddCompile registers the flags that decide the wanted state; `plan` has them too.
func (f *Flags) AddCompile(fs *pflag.FlagSet) {
	fs.StringVar(&f.NodeName, "hostname-override", "", "name of this node in EndpointSlices and Nodes (default: the host name)")
	fs.StringVar(&f.Scheduler, "ipvs-scheduler", "rr", "IPVS scheduler of every Service: "+strings.Join(model.Schedulers, ", "))
	fs.BoolVar(&f.MasqueradeAll, "masquerade-all", false, "masquerade every connection to a ClusterIP")
	fs.IntVar(&f.MasqueradeBit, "iptables-masquerade-bit", 14, "bit of the packet mark that asks for masquerading, 0 to 31")
	fs.StringVar(&f.DetectLocalMode, "detect-local-mode", "ClusterCIDR",
		"how to tell pods, which keep their source address, from other clients: "+strings.Join(localModes, ", "))
	fs.StringVar(&f.ClusterCIDR, "cluster-cidr", "", "range of the cluster's pods; with two families two ranges, separated by a comma")
	fs.StringVar(&f.PodBridge, "pod-bridge-interface", "", "bridge that the pods' packets arrive on, for --detect-local-mode=BridgeInterface")
	fs.StringVar(&f.PodInterfacePrefix, "pod-interface-name-prefix", "",
		"start of the names of the interfaces that the pods' packets arrive on, for --detect-local-mode=InterfaceNamePrefix")
}

// AddRun registers the flags of a running agent.
func (f *Flags) AddRun(fs *pflag.FlagSet) {
	f.AddCompile(fs)
	fs.StringVar(&f.Kubeconfig, "kubeconfig", "", "file with the API server's address and credentials (default: those of the pod's ServiceAccount)")
	fs.StringVar(&f.Master, "master", "", "address of the API server, overriding the one in the kubeconfig")
	fs.StringVar(&f.Manifests, "manifests", "", "directory of Service, EndpointSlice and Node manifests to serve instead of an API server")
	fs.DurationVar(&f.SyncPeriod, "ipvs-sync-period", 30*time.Second, "how often the whole kernel state is read and repaired though nothing has changed")
	fs.DurationVar(&f.DrainTimeout, "drain-timeout", 15*time.Minute,
		"how long an endpoint that takes no new connections may keep its open ones; 0 means until they end")
	fs.StringVar(&f.HealthAddress, "healthz-bind-address", "0.0.0.0:10256",
		"IP address and port of the health server (/healthz, /livez, /readyz); empty for none")
	fs.StringVar(&f.MetricsAddress, "metrics-bind-address", "127.0.0.1:10249",
		"IP address and port of the metrics server (/metrics, /proxyMode); empty for none")
	fs.BoolVar(&f.Profiling, "profiling", false, "serve /debug/pprof/ on the metrics server")
	fs.StringVar(&f.LogLevel, "log-level", "info", "debug, info, warn or error")
	fs.StringVar(&f.LogFormat, "log-format", "text", "text or json")
}

// How to tell local clients from others.
const (
	localByClusterCIDR     = "ClusterCIDR"
	localByNodeCIDR        = "NodeCIDR"
	localByBridge          = "BridgeInterface"
	localByInterfacePrefix = "InterfaceNamePrefix"
)

var localModes = []string{localByClusterCIDR, localByNodeCIDR, localByBridge, localByInterfacePrefix}

// Compile returns what the flags mean for the wanted state, for the families that this node can serve.
func (f *Flags) Compile(families []inet.Family) (compile.Config, error) {
	local, localErr := f.localDetector()
	node, nodeErr := f.nodeName()
	cfg := compile.Config{
		Node:          node,
		Families:      families,
		Scheduler:     f.Scheduler,
		MasqueradeAll: f.MasqueradeAll,
		MasqueradeBit: uint8(f.MasqueradeBit),
		Local:         local,
	}
	return cfg, errors.Join(localErr, nodeErr, f.checkScheduler(), f.checkMasqueradeBit())
}

// Run checks the flags of a running agent that Compile does not look at.
func (f *Flags) Run() error {
	var errs []error
	if f.Manifests != "" && (f.Kubeconfig != "" || f.Master != "") {
		errs = append(errs, fmt.Errorf("--manifests %q and --kubeconfig or --master: two sources; give one of them", f.Manifests))
	}
	if f.SyncPeriod < time.Second {
		errs = append(errs, fmt.Errorf("--ipvs-sync-period %s: want at least 1s; every period reads the whole kernel state", f.SyncPeriod))
	}
	if f.DrainTimeout < 0 {
		errs = append(errs, fmt.Errorf("--drain-timeout %s: want 0 (no limit) or more", f.DrainTimeout))
	}
	errs = append(errs, f.checkServers())
	return errors.Join(errs...)
}

func (f *Flags) checkServers() error {
	errs := []error{
		checkListen("--healthz-bind-address", f.HealthAddress),
		checkListen("--metrics-bind-address", f.MetricsAddress),
	}
	if f.HealthAddress != "" && f.HealthAddress == f.MetricsAddress {
		errs = append(errs, fmt.Errorf("--healthz-bind-address and --metrics-bind-address are both %q: want two addresses or ports", f.HealthAddress))
	}
	if f.Profiling && f.MetricsAddress == "" {
		errs = append(errs, errors.New(`--profiling with --metrics-bind-address "": want an address, such as 127.0.0.1:10249, to serve profiles on`))
	}
	return errors.Join(errs...)
}

func checkListen(flag, text string) error {
	if text == "" {
		return nil
	}
	if addr, err := netip.ParseAddrPort(text); err != nil || addr.Port() == 0 {
		return fmt.Errorf("%s %q: want an IP address and a port, 1 to 65535, such as 127.0.0.1:10249 or [::]:10256, or nothing to switch it off", flag, text)
	}
	return nil
}

// LocalCIDRsFromNode says whether the local ranges come from the node's object.
func (f *Flags) LocalCIDRsFromNode() bool { return f.DetectLocalMode == localByNodeCIDR }

func (f *Flags) nodeName() (string, error) {
	name := f.NodeName
	if name == "" {
		host, err := os.Hostname()
		if err != nil {
			return "", fmt.Errorf("read the host name: %w; give --hostname-override", err)
		}
		name = host
	}
	return strings.ToLower(strings.TrimSpace(name)), nil
}

func (f *Flags) checkScheduler() error {
	if model.KnownScheduler(f.Scheduler) {
		return nil
	}
	return fmt.Errorf("--ipvs-scheduler %q: want one of %s", f.Scheduler, strings.Join(model.Schedulers, ", "))
}

func (f *Flags) checkMasqueradeBit() error {
	if f.MasqueradeBit >= 0 && f.MasqueradeBit <= 31 {
		return nil
	}
	return fmt.Errorf("--iptables-masquerade-bit %d: want 0 to 31", f.MasqueradeBit)
}

func (f *Flags) localDetector() (compile.LocalDetector, error) {
	switch f.DetectLocalMode {
	case localByClusterCIDR:
		cidrs, err := parseCIDRs("--cluster-cidr", f.ClusterCIDR)
		return compile.LocalDetector{CIDRs: cidrs}, err
	case localByNodeCIDR:
		return compile.LocalDetector{}, nil
	case localByBridge:
		return compile.LocalDetector{Bridge: f.PodBridge}, checkInterface("--pod-bridge-interface", f.PodBridge)
	case localByInterfacePrefix:
		return compile.LocalDetector{InterfacePrefix: f.PodInterfacePrefix},
			checkInterface("--pod-interface-name-prefix", f.PodInterfacePrefix)
	}
	return compile.LocalDetector{}, fmt.Errorf("--detect-local-mode %q: want one of %s", f.DetectLocalMode, strings.Join(localModes, ", "))
}

func parseCIDRs(flag, text string) ([]netip.Prefix, error) {
	var cidrs []netip.Prefix
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		cidr, err := netip.ParsePrefix(part)
		if err != nil {
			return nil, fmt.Errorf("%s %q: want an address range such as 10.244.0.0/16: %w", flag, part, err)
		}
		cidrs = append(cidrs, cidr.Masked())
	}
	return cidrs, nil
}

// maxInterfaceName is the kernel's limit for the name of an interface.
const maxInterfaceName = 15

func checkInterface(flag, name string) error {
	if name == "" || len(name) > maxInterfaceName || strings.ContainsAny(name, "/ +\t\n!") {
		return fmt.Errorf("%s %q: want the name of an interface, 1 to %d characters without spaces, '/', '+' and '!'", flag, name, maxInterfaceName)
	}
	return nil
}
