package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// translation is a field or flag of kube-proxy's that says in other words what a setting of ours says, or nothing that can be
// set here.
type translation struct {
	field, flag, short string
	kind               kind
	// to is the path of our setting; empty if none is set.
	to string
	// translate returns the words for our setting (none if it stays as it is), what to warn of, and what is wrong.
	translate func(words []string) (ours, warnings []string, bad []wrong)
	// ours describes the result, for help and documentation.
	ours string
}

var translations = []translation{
	{field: "mode", flag: "proxy-mode", kind: kindText, translate: proxyMode, ours: "ipvs, which is all there is"},
	{field: "logging.verbosity", flag: "v", short: "v", kind: kindNumber, to: "logging.level", translate: verbosity,
		ours: "--log-level: info, from 4 on debug"},
	{flag: "logging-format", kind: kindText, to: "logging.format",
		translate: func(words []string) ([]string, []string, []wrong) { return words, nil, nil }, ours: "--log-format"},
	{field: "featureGates", flag: "feature-gates", kind: kindPairs, to: "externalIPs.allow", translate: featureGates,
		ours: "AllowServiceExternalIPs is --allow-external-ips; others do nothing here"},
	{flag: "healthz-port", kind: kindNumber, to: "healthzBindAddress", translate: onPort("0.0.0.0"),
		ours: "--healthz-bind-address on 0.0.0.0, 0 for none"},
	{flag: "metrics-port", kind: kindNumber, to: "metricsBindAddress", translate: onPort("127.0.0.1"),
		ours: "--metrics-bind-address on 127.0.0.1, 0 for none"},
}

// onPort makes a port the address of a server.
func onPort(host string) func([]string) ([]string, []string, []wrong) {
	return func(words []string) (ours, warnings []string, bad []wrong) {
		port, err := strconv.ParseUint(words[0], 10, 16)
		switch {
		case err != nil:
			return nil, nil, []wrong{{0, "a port, 1 to 65535, or 0 for none"}}
		case port == 0:
			return []string{""}, nil, nil
		}
		return []string{fmt.Sprintf("%s:%d", host, port)}, nil, nil
	}
}

func proxyMode(words []string) (ours, warnings []string, bad []wrong) {
	switch words[0] {
	case "ipvs":
		return nil, nil, nil
	case "":
		return nil, []string{"here this means ipvs, not iptables"}, nil
	}
	return nil, nil, []wrong{{0, "ipvs: there is no other mode here"}}
}

func verbosity(words []string) (ours, warnings []string, bad []wrong) {
	n, err := strconv.Atoi(words[0])
	switch {
	case err != nil || n < 0:
		return nil, nil, []wrong{{0, "a number, 0 or more; from 4 on it means debug"}}
	case n >= 4:
		return []string{"debug"}, nil, nil
	}
	return []string{"info"}, nil, nil
}

func featureGates(words []string) (ours, warnings []string, bad []wrong) {
	for i, word := range words {
		gate, state, _ := strings.Cut(word, "=")
		on, err := strconv.ParseBool(state)
		switch {
		case err != nil:
			bad = append(bad, wrong{i, "NAME=true or NAME=false"})
		case gate == "AllowServiceExternalIPs":
			ours = []string{strconv.FormatBool(on)}
		default:
			warnings = append(warnings, fmt.Sprintf("the feature gate %s does nothing here", gate))
		}
	}
	return ours, warnings, bad
}

// inapplicable is a field or flag of kube-proxy's that does nothing here.
type inapplicable struct {
	field, flag string
	truth       bool     // the flag may stand without a value
	usual       []string // values that need no warning besides zero ones
	why         string
}

const (
	otherMode = "it is for another proxy mode"
	windows   = "it is for Windows"
	logOption = "the log has levels and two formats only"
)

var inapplicables = []inapplicable{
	{field: "bindAddress", flag: "bind-address", usual: []string{"0.0.0.0", "::"}, why: "the node's addresses are those of its Node object and interfaces"},
	{field: "bindAddressHardFail", flag: "bind-address-hard-fail", truth: true, why: "an address that cannot be listened on is tried again, and Services are served meanwhile"},
	{field: "showHiddenMetricsForVersion", flag: "show-hidden-metrics-for-version", why: "no metrics are hidden"},
	{field: "clientConnection.acceptContentTypes", why: "the API server is asked for protobuf"},
	{field: "clientConnection.contentType", flag: "kube-api-content-type", usual: []string{"application/vnd.kubernetes.protobuf"}, why: "the API server is asked for protobuf"},
	{field: "configSyncPeriod", flag: "config-sync-period", usual: []string{"15m0s", "15m"}, why: "watches are not repeated without need"},
	{field: "iptables.localhostNodePorts", flag: "iptables-localhost-nodeports", truth: true, usual: []string{"true"}, why: "with IPVS node ports are never served on loopback addresses"},
	{field: "iptables.syncPeriod", flag: "iptables-sync-period", usual: []string{"30s"}, why: otherMode + "; see ipvs.syncPeriod"},
	{field: "iptables.minSyncPeriod", flag: "iptables-min-sync-period", usual: []string{"1s"}, why: otherMode + "; see ipvs.minSyncPeriod"},
	{field: "nftables.masqueradeBit", usual: []string{"14"}, why: otherMode},
	{field: "nftables.masqueradeAll", why: otherMode},
	{field: "nftables.syncPeriod", usual: []string{"30s"}, why: otherMode},
	{field: "nftables.minSyncPeriod", usual: []string{"1s"}, why: otherMode},
	{field: "winkernel.networkName", why: windows},
	{field: "winkernel.sourceVip", why: windows},
	{field: "winkernel.enableDSR", why: windows},
	{field: "winkernel.rootHnsEndpointName", why: windows},
	{field: "winkernel.forwardHealthCheckVip", why: windows},
	{field: "windowsRunAsService", why: windows},
	{field: "portRange", why: "kube-proxy does not use it either"},
	{field: "logging.flushFrequency", flag: "log-flush-frequency", usual: []string{"5s", "5000000000"}, why: "the log is never held back"},
	{field: "logging.vmodule", flag: "vmodule", why: logOption},
	{field: "logging.options", why: logOption},
	{flag: "log-json-info-buffer-size", why: logOption},
	{flag: "log-json-split-stream", truth: true, why: logOption},
	{flag: "log-text-info-buffer-size", why: logOption},
	{flag: "log-text-split-stream", truth: true, why: logOption},
	{flag: "boot-id-file", why: "nothing asks which boot this is"},
	{flag: "machine-id-file", why: "nothing asks which machine this is"},
}

// zeroWords are what kube-proxy's types print for a zero value; kubeadm writes many of them.
var zeroWords = []string{"", "0", "0s", "false"}

func (i inapplicable) needsWarning(word string) bool {
	return !slices.Contains(zeroWords, word) && !slices.Contains(i.usual, word)
}

// isZero says whether words are the zero value of kube-proxy's type.
func isZero(k kind, words []string) bool {
	switch k {
	case kindList:
		return len(words) == 0
	case kindDuration:
		d, err := time.ParseDuration(words[0])
		return err == nil && d == 0
	case kindNumber:
		return words[0] == "0"
	}
	return words[0] == ""
}

// withPort completes an address without a port, as kube-proxy does in a file.
func withPort(words []string, port uint16) []string {
	if addr, err := netip.ParseAddr(words[0]); err == nil {
		return []string{netip.AddrPortFrom(addr, port).String()}
	}
	return words
}

// kube-proxy's ports.
const (
	healthPort  = 10256
	metricsPort = 10249
)

// completeServers gives the servers kube-proxy's addresses: a bindAddress of IPv6 moves their defaults there.
func completeServers(given map[string]given, bind given) {
	complete := func(path string, port uint16, usual string) {
		g, ok := given[path]
		switch {
		case ok:
			g.words = withPort(g.words, port)
			given[path] = g
		case bind.isIPv6():
			bind.words = []string{usual}
			given[path] = bind
		}
	}
	complete("healthzBindAddress", healthPort, "[::]:10256")
	complete("metricsBindAddress", metricsPort, "[::1]:10249")
}

func (g given) isIPv6() bool {
	if len(g.words) != 1 {
		return false
	}
	addr, err := netip.ParseAddr(g.words[0])
	return err == nil && addr.Is6()
}
