package config

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

func TestFlags(t *testing.T) {
	for _, c := range []struct {
		args []string
		want []string // parts of the error, or none on success
	}{
		{nil, nil},
		{[]string{"--healthz-bind-address=", "--metrics-bind-address="}, nil},
		{[]string{"--healthz-bind-address=[::]:10256", "--metrics-bind-address=[::1]:10249", "--profiling"}, nil},
		{[]string{"--healthz-bind-address=0.0.0.0"}, []string{`--healthz-bind-address "0.0.0.0"`, "[::]:10256"}},
		{[]string{"--healthz-bind-address=:10256"}, []string{`--healthz-bind-address ":10256"`, "IP address"}},
		{[]string{"--metrics-bind-address=localhost:10249"}, []string{`--metrics-bind-address "localhost:10249"`, "IP address"}},
		{[]string{"--metrics-bind-address=127.0.0.1:0"}, []string{`--metrics-bind-address "127.0.0.1:0"`, "1 to 65535"}},
		{[]string{"--metrics-bind-address=127.0.0.1:65536"}, []string{`"127.0.0.1:65536"`, "1 to 65535"}},
		{[]string{"--metrics-bind-address=0.0.0.0:10256"}, []string{"--healthz-bind-address", "--metrics-bind-address", "two different addresses"}},
		{[]string{"--metrics-bind-address=", "--profiling"}, []string{"--profiling", "127.0.0.1:10249"}},
		{[]string{"--manifests=a", "--master=b"}, []string{`--manifests "a" and --master "b"`, "one of them"}},
		{[]string{"--manifests=a", "--remove-startup-taint"}, []string{`--manifests "a" and --remove-startup-taint true`, "API server"}},
		{[]string{"--ipvs-min-sync-period=31s"}, []string{"--ipvs-min-sync-period 31s and --ipvs-sync-period 30s"}},
		{[]string{"--ipvs-sync-period=soon", "--ipvs-scheduler=x"}, []string{`--ipvs-sync-period soon: must be at least 1s`, `--ipvs-scheduler "x"`}},
		{[]string{"--conntrack-max-per-core=x"}, []string{"--conntrack-max-per-core x: must be from 0 to"}},
		{[]string{"--masquerade-pod-egress"}, []string{"--masquerade-pod-egress true", "--cluster-cidr", "only this node's pods"}},
		{[]string{"--masquerade-pod-egress", "--cluster-cidr=10.0.0.0/8"}, nil},
		{[]string{"--masquerade-pod-egress", "--detect-local-mode=NodeCIDR"}, []string{"--masquerade-pod-egress true", `--detect-local-mode "NodeCIDR"`}},
		{[]string{"--cluster-cidr=10.0.0.0/8,10.0.0.0/9,fd00::/8"}, []string{"--cluster-cidr", "one per family"}},
		{[]string{"--cluster-cidr=::ffff:10.0.0.0/104"}, []string{"--cluster-cidr"}},
		{[]string{"--nodeport-addresses=primary"}, nil},
		{[]string{"--nodeport-addresses=primary", "--nodeport-addresses=10.0.0.0/8"}, nil},
		{[]string{"--nodeport-addresses=primary,localhost,all"}, nil},
		{[]string{"--nodeport-addresses=localhost,primary,localhost"}, []string{"--nodeport-addresses", "must not be repeated"}},
		{[]string{"--nodeport-addresses=Primary"}, []string{`--nodeport-addresses "Primary"`, "or one of primary, localhost, all"}},
		{[]string{"--allow-external-ips=false", "--external-ip-ranges=192.0.2.0/24"}, []string{"--allow-external-ips", "--external-ip-ranges"}},
		{[]string{"--proxy-mode=ipvs"}, nil},
		{[]string{"--proxy-mode=iptables"}, []string{`--proxy-mode "iptables": must be ipvs`}},
		{[]string{"--healthz-port=10256", "--metrics-port=0"}, nil},
		{[]string{"--healthz-port=1", "--metrics-bind-address=0.0.0.0:1"}, []string{`--healthz-port "0.0.0.0:1" and --metrics-bind-address "0.0.0.0:1"`}},
		{[]string{"--metrics-port=65536"}, []string{"--metrics-port 65536: must be a port"}},
		{[]string{"-v", "high"}, []string{"--v high: must be a number"}},
		{[]string{"--feature-gates=A"}, []string{`--feature-gates "A": must be NAME=true or NAME=false`}},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			_, err := parse(t, c.args...).Load()
			if (err != nil) != (len(c.want) > 0) {
				t.Fatalf("got error %v, want parts %q", err, c.want)
			}
			for _, part := range c.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("the error does not contain %q: %v", part, err)
				}
			}
		})
	}
}

const head = "apiVersion: config.kube-ipvs.io/v1alpha1\nkind: Configuration\n"
const kubeProxyHead = "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\n"

// Flags override the file, the file overrides the defaults, and the origin of every setting is known.
func TestPrecedence(t *testing.T) {
	f := parse(t, "--ipvs-scheduler=wlc", "--ipvs-exclude-cidrs=10.1.0.0/16,10.2.0.0/16", "--ipvs-exclude-cidrs=10.3.0.0/16", "--log-level=warn", "-v=9")
	f.File = "f.yaml"
	l, err := f.load([]byte(head + "ipvs:\n  scheduler: sh\n  syncPeriod: 1m\n  excludeCIDRs: [192.0.2.0/24]\n"))
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"ipvs.scheduler":     "wlc from --ipvs-scheduler",
		"ipvs.syncPeriod":    "1m0s from f.yaml:5",
		"ipvs.drainTimeout":  "15m0s from default",
		"ipvs.excludeCIDRs":  "10.1.0.0/16,10.2.0.0/16,10.3.0.0/16 from --ipvs-exclude-cidrs",
		"logging.level":      "warn from --log-level",
		"healthzBindAddress": "0.0.0.0:10256 from default",
	} {
		got := strings.Join(rowOf(path).value(&l.Settings).words(), ",") + " from " + l.origin(path)
		if got != want {
			t.Errorf("%s: got %s, want %s", path, got, want)
		}
	}
}

func TestFlagOverridesFile(t *testing.T) {
	for _, row := range table {
		inFile, onCommandLine := samples(row)
		var pods []string // some settings require pod ranges
		if row.path != "clusterCIDR" {
			pods = []string{"--cluster-cidr=10.0.0.0/8"}
		}
		if row.path == forwardAddresses.path {
			pods = append(pods, "--data-plane=userspace")
		}
		without, f := parse(t, pods...), parse(t, append(pods, "--"+row.flag+"="+onCommandLine)...)
		without.File, f.File = "f.json", "f.json"
		for _, format := range formats {
			if format == kubeProxyFormat && row.kubeProxy == otherField {
				continue
			}
			content := fileOf(format, row.path, row.kind(), inFile)
			for _, c := range []struct {
				flags      *Flags
				want, from string
			}{{without, inFile, "f.json:1"}, {f, onCommandLine, "--" + row.flag}} {
				l, err := c.flags.load(content)
				if err != nil {
					t.Errorf("%s: %v", row.path, err)
					continue
				}
				if got := strings.Join(row.value(&l.Settings).words(), ","); got != c.want || l.origin(row.path) != c.from {
					t.Errorf("%s: got %s from %s, want %s from %s", row.path, got, l.origin(row.path), c.want, c.from)
				}
			}
		}
	}
}

// samples returns two values of a setting that are valid if all other settings have their defaults.
func samples(row setting) (a, b string) {
	switch row.kind() {
	case kindBool, kindSwitch:
		return "true", "false"
	case kindNumber:
		return "3", "7"
	case kindDuration:
		return "7s", "9s"
	case kindList:
		return "10.1.0.0/16", "10.0.0.0/8"
	}
	for path, pair := range map[string][2]string{
		"ipvs.scheduler": {"sh", "wlc"}, "detectLocalMode": {"ClusterCIDR", "NodeCIDR"}, "logging.level": {"warn", "debug"},
		"logging.format": {"text", "json"}, "healthzBindAddress": {"127.0.0.1:1", "127.0.0.1:2"}, "metricsBindAddress": {"127.0.0.1:1", "127.0.0.1:2"},
		"statusSocket": {"/run/one", "/run/two"}, "snapshot.file": {"/one", "/two"}, "externalIPs.nodeAddresses": {"all", "none"}, "rules": {"iptables", "nftables"},
		"dataPlane": {"ipvs", "nftables"}, "forward.addresses": {AtServices, AtLoopback}, "addresses": {"interface", "routes"},
	} {
		if row.path == path {
			return pair[0], pair[1]
		}
	}
	return "one", "two"
}

func fileOf(f format, path string, k kind, value string) []byte {
	if k == kindText || k == kindDuration {
		value = fmt.Sprintf("%q", value)
	}
	if k == kindList {
		value = fmt.Sprintf("[%q]", value)
	}
	names := strings.Split(path, ".")
	text := value
	for i := len(names) - 1; i >= 0; i-- {
		text = fmt.Sprintf("{%q: %s}", names[i], text)
	}
	return fmt.Appendf(nil, `{"apiVersion": %q, "kind": %q, %s`, f.version, f.kind, text[1:])
}

// A configuration file can have several forms. Any other form is an error.
func TestFileForms(t *testing.T) {
	for _, c := range []struct {
		name, content string
		want          string // the scheduler, or the error
	}{
		{"only primary or all", head + "ipvs: {scheduler: sh}", "sh"},
		{"JSON", `{"apiVersion":"config.kube-ipvs.io/v1alpha1","kind":"Configuration","ipvs":{"scheduler":"sh"}}`, "sh"},
		{"null is not set", head + "ipvs: {scheduler: null}\nconntrack:\n", "rr"},
		{"among other documents", "kind: A\napiVersion: x/v1\n---\n---\n" + head + "ipvs: {scheduler: sh}\n", "sh"},
		{"alias", "x: &a sh\n" + kubeProxyHead + "ipvs: {scheduler: *a}", "sh"},
		{"quoted in a ConfigMap", "apiVersion: v1\nkind: ConfigMap\ndata: {c: \"" + strings.ReplaceAll(kubeProxyHead, "\n", `\n`) + `ipvs: {scheduler: sh}"}`, "sh"},
		{"unknown field of kube-proxy", kubeProxyHead + "ipvs: {scheduler: sh, sheduler: rr}", "sh"},
		{"error in quoted text of a ConfigMap",
			"apiVersion: v1\nkind: ConfigMap\ndata:\n  c: \"" + strings.ReplaceAll(kubeProxyHead, "\n", `\n`) + `mode: x"`, `f:4: data[c]:3: mode "x"`},
		{"error in a block of a ConfigMap", "apiVersion: v1\nkind: ConfigMap\ndata:\n  c: |\n    " + strings.ReplaceAll(kubeProxyHead, "\n", "\n    ") + "mode: x", `f:7: mode "x"`},
		{"invalid YAML in a ConfigMap", "apiVersion: v1\nkind: ConfigMap\ndata:\n  c: |\n    " + strings.ReplaceAll(kubeProxyHead, "\n", "\n    ") + "{", "invalid YAML or JSON"},
		{"empty", "", "f: no configuration found; add a document with apiVersion config.kube-ipvs.io/v1alpha1"},
		{"only other documents", "apiVersion: v1\nkind: Pod", "f: no configuration found"},
		{"ConfigMap without configuration", "apiVersion: v1\nkind: ConfigMap\ndata: {a: b}", "f: no configuration found"},
		{"two", head + "---\n" + kubeProxyHead, "f:4: a second configuration, after f:1"},
		{"no version", "ipvs: {scheduler: sh}", `f:1: no apiVersion; use apiVersion config.kube-ipvs.io/v1alpha1`},
		{"other version", "apiVersion: config.kube-ipvs.io/v2\nkind: Configuration", `"config.kube-ipvs.io/v2", kind "Configuration": must be config.kube-ipvs.io/v1alpha1`},
		{"other kind", "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: Configuration", `must be kubeproxy.config.k8s.io/v1alpha1 and KubeProxyConfiguration`},
		{"list", "- a", "f:1: [...]: must be a mapping"},
		{"syntax", head + "ipvs: {\n", "f:"},
		{"metrics of stopped counters", head + "ipvs: {trafficCounters: false}\nmetrics: {servicePorts: 9}", "f:3: ipvs.trafficCounters false and f:4: metrics.servicePorts 9: metrics"},
		{"metrics of endpoints, of stopped counters", head + "ipvs: {trafficCounters: false}\nmetrics: {endpoints: 9}", "metrics.endpoints 9: metrics"},
		{"metrics of nftables", head + "ipvs: {trafficCounters: false}\nmetrics: {servicePorts: 9}\ndataPlane: nftables", "rr"},
		{"cyclic aliases", "a: &a [*a]\n" + head + "ipvs: &b {ipvs: *b}", `"a": unknown field`},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, err := (&Flags{File: "f"}).load([]byte(c.content))
			switch {
			case err != nil && !strings.Contains(err.Error(), c.want):
				t.Errorf("got error %q, want %q", err, c.want)
			case err == nil && l.Scheduler != c.want:
				t.Errorf("got scheduler %s, want %s", l.Scheduler, c.want)
			}
		})
	}
}

func TestUnreadableFiles(t *testing.T) {
	dir := t.TempDir()
	big := filepath.Join(dir, "big")
	write(t, big, strings.Repeat("#", maxFile+1))
	for file, want := range map[string]string{filepath.Join(dir, "none"): "no such file", dir: "is a directory", big: "larger than 1048576 bytes"} {
		if _, err := (&Flags{File: file}).Load(); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), file) {
			t.Errorf("%s: got error %v, want %q and the file's name", file, err, want)
		}
	}
}

// Every setting that affects the wanted state reaches compile.
func TestCompile(t *testing.T) {
	l, err := parse(t, "--hostname-override= Node-1 ", "--ipvs-scheduler=wlc", "--masquerade-all", "--iptables-masquerade-bit=3",
		"--cluster-cidr=10.244.1.2/16,fd00::/56", "--nodeport-addresses=192.0.2.0/24", "--allow-external-ips",
		"--external-ip-ranges=198.51.100.0/24", "--ipvs-exclude-cidrs=203.0.113.0/24", "--masquerade-pod-egress",
		"--non-masquerade-cidrs=10.0.0.0/8", "--accept-service-traffic", "--ipvs-strict-arp=false", "--conntrack-tcp-be-liberal",
		"--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0",
		"--ipvs-traffic-counters=false", "--ipvs-tcp-timeout=1h", "--ipvs-tcpfin-timeout=1m", "--ipvs-udp-timeout=2m").Load()
	if err != nil {
		t.Fatal(err)
	}
	if name, err := l.Hostname(); err != nil || name != "node-1" {
		t.Errorf("got host name %q, error %v", name, err)
	}
	prefixes := func(texts ...string) (all []netip.Prefix) {
		for _, text := range texts {
			all = append(all, netip.MustParsePrefix(text))
		}
		return all
	}
	want := compile.Settings{
		StopCounters: true, Scheduler: "wlc", MasqueradeAll: true, MasqueradeBit: 3,
		Local:       compile.LocalDetector{CIDRs: prefixes("10.244.0.0/16", "fd00::/56")},
		NodePorts:   compile.NodePortAddresses{CIDRs: prefixes("192.0.2.0/24")},
		ExternalIPs: compile.ExternalIPs{Allowed: prefixes("198.51.100.0/24")},
		Excluded:    prefixes("203.0.113.0/24"), AgentPorts: []uint16{10256, 10249},
		Egress: compile.Egress{Masquerade: true, Except: prefixes("10.0.0.0/8")}, AcceptServices: true,
		Sysctls:  []kernel.SysctlSetting{{Name: "net/netfilter/nf_conntrack_tcp_be_liberal", Value: "1", Optional: true}},
		Timeouts: kernel.Timeouts{TCP: time.Hour, TCPFin: time.Minute, UDP: 2 * time.Minute},
	}
	if d := cmp.Diff(want, l.Compile(), byText); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

func TestLocalDetectors(t *testing.T) {
	for _, c := range []struct {
		args     []string
		want     compile.LocalDetector
		fromNode bool
	}{
		{[]string{"--detect-local-mode=NodeCIDR", "--cluster-cidr=10.0.0.0/8"}, compile.LocalDetector{}, true},
		{[]string{"--detect-local-mode=BridgeInterface", "--pod-bridge-interface=cni0"}, compile.LocalDetector{Bridge: "cni0"}, false},
		{[]string{"--detect-local-mode=InterfaceNamePrefix", "--pod-interface-name-prefix=cali"}, compile.LocalDetector{InterfacePrefix: "cali"}, false},
	} {
		l, err := parse(t, c.args...).Load()
		if err != nil {
			t.Fatal(err)
		}
		cfg := l.compile(1)
		if d := cmp.Diff(c.want, cfg.Local); d != "" || cfg.LocalByNodeCIDR != c.fromNode {
			t.Errorf("%q: LocalByNodeCIDR is %t, want %t; (-want +got)\n%s", c.args, cfg.LocalByNodeCIDR, c.fromNode, d)
		}
	}
}

// strictARP is true unless a file or flag sets it to false.
func TestStrictARPDefault(t *testing.T) {
	for content, want := range map[string]bool{
		head: true, kubeProxyHead: true, kubeProxyHead + "ipvs: {strictARP: null}": true,
		kubeProxyHead + "ipvs: {strictARP: false}": false, head + "ipvs: {strictARP: false}": false,
	} {
		l, err := (&Flags{File: "f"}).load([]byte(content))
		if err != nil || l.StrictARP != want {
			t.Errorf("%v, strictARP is %t, want %t:\n%s", err, l != nil && l.StrictARP, want, content)
		}
	}
}

func TestInapplicableFlags(t *testing.T) {
	l, err := parse(t, "--bind-address-hard-fail", "--config-sync-period=1m", "--feature-gates=AllowServiceExternalIPs=false,X=true").Load()
	if err != nil {
		t.Fatal(err)
	}
	if l.AllowExternalIPs != "false" {
		t.Error("the feature gate did not disable external IPs")
	}
	for i, want := range []string{"feature gate X", "--bind-address-hard-fail", `--config-sync-period "1m"`} {
		if len(l.Warnings) != 3 || !strings.Contains(l.Warnings[i], want) {
			t.Fatalf("got warnings %q, want %q in warning %d of 3", l.Warnings, want, i+1)
		}
	}
}
