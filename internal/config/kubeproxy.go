package config

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
)

// translation is a kube-proxy field or flag that sets a kube-ipvs setting under another name, or only to a fixed
// value.
type translation struct {
	field, flag, short string
	kind               kind
	// to is the path of the kube-ipvs setting. It is empty if there is none.
	to string
	// translate returns the words for the kube-ipvs setting (nil keeps its value), the warnings, and the invalid words.
	translate func(words []string) (ours, warnings []string, invalid []invalidWord)
	// ours describes the effect, for help and documentation.
	ours string
}

var translations = []translation{
	{field: "mode", flag: "proxy-mode", kind: kindText, translate: proxyMode, ours: "the mode, which must be ipvs"},
	{field: "logging.verbosity", flag: "v", short: "v", kind: kindNumber, to: "logging.level", translate: verbosity,
		ours: "--log-level: info, or debug for 4 and above"},
	{flag: "logging-format", kind: kindText, to: "logging.format",
		translate: func(words []string) ([]string, []string, []invalidWord) { return words, nil, nil }, ours: "--log-format"},
	{field: "featureGates", flag: "feature-gates", kind: kindPairs, to: "externalIPs.allow", translate: featureGates,
		ours: "--allow-external-ips (AllowServiceExternalIPs); other gates have no effect"},
	{flag: "healthz-port", kind: kindNumber, to: "healthzBindAddress", translate: onPort("0.0.0.0"),
		ours: "--healthz-bind-address on 0.0.0.0; 0 disables it"},
	{flag: "metrics-port", kind: kindNumber, to: "metricsBindAddress", translate: onPort("127.0.0.1"),
		ours: "--metrics-bind-address on 127.0.0.1; 0 disables it"},
}

func onPort(host string) func([]string) ([]string, []string, []invalidWord) {
	return func(words []string) (ours, warnings []string, invalid []invalidWord) {
		port, err := strconv.ParseUint(words[0], 10, 16)
		switch {
		case err != nil:
			return nil, nil, []invalidWord{{0, "must be a port from 1 to 65535, or 0 to disable it"}}
		case port == 0:
			return []string{""}, nil, nil
		}
		return []string{fmt.Sprintf("%s:%d", host, port)}, nil, nil
	}
}

func proxyMode(words []string) (ours, warnings []string, invalid []invalidWord) {
	switch words[0] {
	case "ipvs":
		return nil, nil, nil
	case "":
		return nil, []string{"the mode is ipvs; for kube-proxy an empty mode means iptables"}, nil
	}
	return nil, nil, []invalidWord{{0, "must be ipvs, the only mode of kube-ipvs"}}
}

func verbosity(words []string) (ours, warnings []string, invalid []invalidWord) {
	n, err := strconv.Atoi(words[0])
	switch {
	case err != nil || n < 0:
		return nil, nil, []invalidWord{{0, "must be a number, 0 or more; 4 and above mean debug"}}
	case n >= 4:
		return []string{"debug"}, nil, nil
	}
	return []string{"info"}, nil, nil
}

func featureGates(words []string) (ours, warnings []string, invalid []invalidWord) {
	for i, word := range words {
		gate, state, _ := strings.Cut(word, "=")
		on, err := strconv.ParseBool(state)
		switch {
		case err != nil:
			invalid = append(invalid, invalidWord{i, "must be NAME=true or NAME=false"})
		case gate == "AllowServiceExternalIPs":
			ours = []string{strconv.FormatBool(on)}
		default:
			warnings = append(warnings, fmt.Sprintf("the feature gate %s has no effect", gate))
		}
	}
	return ours, warnings, invalid
}

// inapplicable is a field or flag of kube-proxy that has no effect in kube-ipvs.
type inapplicable struct {
	field, flag string
	boolean     bool     // the flag can be given without a value
	harmless    []string // values that need no warning, besides zero values
	why         string
}

func (i inapplicable) kind() kind {
	if i.boolean {
		return kindBool
	}
	return kindText
}

const (
	protobuf  = "the agent always requests protobuf"
	otherMode = "it applies to another proxy mode"
	windows   = "it applies only to Windows"
	logOption = "the log supports only levels and two formats"
)

var inapplicables = []inapplicable{
	{field: "bindAddress", flag: "bind-address", harmless: []string{"0.0.0.0", "::"}, why: "the node's addresses come from its Node object and its interfaces"},
	{field: "bindAddressHardFail", flag: "bind-address-hard-fail", boolean: true, why: "if an address cannot be bound, the agent keeps serving Services and retries"},
	{field: "showHiddenMetricsForVersion", flag: "show-hidden-metrics-for-version", why: "no metrics are hidden"},
	{field: "clientConnection.acceptContentTypes", why: protobuf},
	{field: "clientConnection.contentType", flag: "kube-api-content-type", harmless: []string{"application/vnd.kubernetes.protobuf"}, why: protobuf},
	{field: "configSyncPeriod", flag: "config-sync-period", harmless: []string{"15m0s", "15m"}, why: "the agent does not resync periodically with the API server"},
	{field: "iptables.localhostNodePorts", flag: "iptables-localhost-nodeports", boolean: true, harmless: []string{"true"},
		why: "add localhost to nodePortAddresses, for example all,localhost"},
	{field: "iptables.syncPeriod", flag: "iptables-sync-period", harmless: []string{"30s"}, why: otherMode + "; see ipvs.syncPeriod"},
	{field: "iptables.minSyncPeriod", flag: "iptables-min-sync-period", harmless: []string{"1s"}, why: otherMode + "; see ipvs.minSyncPeriod"},
	{field: "nftables.masqueradeBit", harmless: []string{"14"}, why: otherMode},
	{field: "nftables.masqueradeAll", why: otherMode},
	{field: "nftables.syncPeriod", harmless: []string{"30s"}, why: otherMode},
	{field: "nftables.minSyncPeriod", harmless: []string{"1s"}, why: otherMode},
	{field: "winkernel.networkName", why: windows},
	{field: "winkernel.sourceVip", why: windows},
	{field: "winkernel.enableDSR", why: windows},
	{field: "winkernel.rootHnsEndpointName", why: windows},
	{field: "winkernel.forwardHealthCheckVip", why: windows},
	{field: "windowsRunAsService", why: windows},
	{field: "portRange", why: "kube-proxy does not use it either"},
	{field: "logging.flushFrequency", flag: "log-flush-frequency", harmless: []string{"5s", "5000000000"}, why: "the log is not buffered"},
	{field: "logging.vmodule", flag: "vmodule", why: logOption},
	{field: "logging.options", why: logOption},
	{flag: "log-json-info-buffer-size", why: logOption},
	{flag: "log-json-split-stream", boolean: true, why: logOption},
	{flag: "log-text-info-buffer-size", why: logOption},
	{flag: "log-text-split-stream", boolean: true, why: logOption},
	{flag: "boot-id-file", why: "the agent does not use the boot ID"},
	{flag: "machine-id-file", why: "the agent does not use the machine ID"},
}

// zeroWords lists the printed zero values of kube-proxy's types. kubeadm writes many of them.
var zeroWords = []string{"", "0", "0s", "false"}

func (i inapplicable) needsWarning(word string) bool {
	return !slices.Contains(zeroWords, word) && !slices.Contains(i.harmless, word)
}

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

// dropUnset removes the inputs that kube-proxy treats as "not set".
func dropUnset(inputs map[string]input) {
	for _, row := range table {
		in, ok := inputs[row.path]
		if ok && row.kubeProxy == zeroIsUnset && !in.mistyped && isZero(row.kind(), in.words) {
			delete(inputs, row.path)
		}
	}
}

// completeServers completes the addresses of the servers as kube-proxy does. It adds missing ports, and uses IPv6 default addresses if bindAddress is
// an IPv6 address.
func completeServers(inputs map[string]input, bind input) {
	for _, server := range []struct {
		path, ipv6 string
		port       uint16
	}{
		{"healthzBindAddress", "::", 10256},
		{"metricsBindAddress", "::1", 10249},
	} {
		in, ok := inputs[server.path]
		if bindAddr, err := netip.ParseAddr(strings.Join(bind.words, "")); !ok && err == nil && bindAddr.Is6() {
			in, ok = input{place: bind.place, words: []string{server.ipv6}}, true
		}
		if !ok || in.mistyped {
			continue
		}
		if addr, err := netip.ParseAddr(in.words[0]); err == nil {
			in.words = []string{netip.AddrPortFrom(addr, server.port).String()}
		}
		inputs[server.path] = in
	}
}
