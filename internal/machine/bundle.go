package machine

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/bundle"
	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// BundleParts are the parts of a bug report that come from this machine. v is nil if no agent responds on the socket.
func (m *Machine) BundleParts(socket string, v *view.View) []bundle.Part {
	return []bundle.Part{
		{File: "node/kernel.txt", Command: "uname -r; cat /etc/os-release", Write: m.writeRelease},
		{File: "node/modules.txt", Command: "lsmod", Write: m.writeModules},
		{File: "node/sysctls.txt", Command: "sysctl", Write: func(ctx context.Context, w io.Writer) error { return m.writeSysctls(ctx, w, v) }},
		{File: "node/addresses.txt", Command: "ip address", Write: m.writeAddresses},
		{File: "node/routes.txt", Command: "cat /proc/net/route /proc/net/ipv6_route", Write: m.writeRoutes, Limit: maxRoutes},
		{File: "node/kernel.log", Command: "dmesg", Write: m.writeKernelLog},
		{File: "node/agent.log", Command: "journalctl -u kube-ipvs", Write: m.AgentLog},
		{File: "kernel/sets.txt", Command: "ipset save", Write: m.writeSets},
		{File: "kernel/rules.txt", Command: "iptables-save", Write: m.writeRules},
		{File: "kernel/others.txt", Command: "ipset list -n; nft list chains", Write: m.writeOthers},
		{File: "kernel/connections.txt", Command: "kube-ipvs conns", Write: func(ctx context.Context, w io.Writer) error { return m.writeConnections(ctx, w, socket) }},
		{File: "agent/metrics.txt", Command: "curl /metrics", Write: func(ctx context.Context, w io.Writer) error { return m.writeMetrics(ctx, w, v) }},
	}
}

const (
	// maxRoutes is the maximum size of the routes in bytes. If IPVS has more than maxCounted connections, they are not
	// counted by state.
	maxRoutes  = 1 << 20
	maxCounted = 200_000
)

// all joins the contents of files. It skips files that do not exist.
func (m *Machine) all(ctx context.Context, w io.Writer, files ...string) (failed error) {
	for _, file := range files {
		text, err := m.Host(ctx).ReadFile(file)
		if err != nil {
			if !errors.Is(err, fs.ErrNotExist) {
				failed = errors.Join(failed, err)
			}
			continue
		}
		if _, err := fmt.Fprintf(w, "# %s\n%s", file, text); err != nil {
			return err
		}
	}
	return failed
}

func (m *Machine) writeRelease(ctx context.Context, w io.Writer) error {
	fmt.Fprintln(w, m.Release())
	return m.all(ctx, w, "/etc/os-release")
}

var modules = []string{
	"ip_vs", "ip_set", "ip_tables", "ip6_tables", "iptable_", "ip6table_", "ipt_", "ip6t_", "x_tables", "xt_", "nf_", "nft_",
	"nfnetlink", "br_netfilter", "bridge", "dummy",
}

func (m *Machine) writeModules(ctx context.Context, w io.Writer) error {
	text, err := m.Host(ctx).ReadFile("/proc/modules")
	for line := range strings.Lines(string(text)) {
		if slices.ContainsFunc(modules, func(prefix string) bool { return strings.HasPrefix(line, prefix) }) {
			_, err = io.WriteString(w, line)
		}
	}
	return err
}

// sysctls lists the sysctls to collect, besides IPVS's own sysctls and the ones that the agent sets.
var sysctls = []string{
	"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding", "net/ipv6/conf/all/disable_ipv6", "net/ipv4/conf/all/rp_filter", "net/ipv4/conf/default/rp_filter",
	"net/netfilter/nf_conntrack_count", "net/netfilter/nf_conntrack_max", "net/ipv4/ip_local_port_range", "net/ipv4/ip_local_reserved_ports",
	"net/ipv4/tcp_keepalive_time", "net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables",
	"net/ipv4/neigh/default/gc_thresh3", "net/ipv6/neigh/default/gc_thresh3",
}

func (m *Machine) writeSysctls(ctx context.Context, w io.Writer, v *view.View) error {
	const root, ofIPVS = "/proc/sys/", "net/ipv4/vs"
	host, names := m.Host(ctx), slices.Clone(sysctls)
	for _, s := range baseOf(v).Sysctls {
		names = append(names, s.Name)
	}
	inDir, err := host.Names(root + ofIPVS)
	for _, name := range inDir {
		names = append(names, path.Join(ofIPVS, name))
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		text, unread := host.ReadFile(root + name)
		value := strings.TrimSpace(string(text))
		if unread != nil {
			value = "(" + unread.Error() + ")"
		}
		fmt.Fprintf(w, "%s = %s\n", name, value)
	}
	return err
}

func (m *Machine) writeAddresses(ctx context.Context, w io.Writer) error {
	k := m.Kernel(ctx, Look{Parts: []explain.Part{explain.Addresses}})
	interfaces, err := m.Host(ctx).Interfaces()
	for _, i := range interfaces {
		fmt.Fprintf(w, "interface %s: kind %s, MTU %d, up %t\n", i.Name, i.Kind, i.MTU, i.Up)
	}
	for _, addr := range k.NodeAddresses {
		fmt.Fprintf(w, "node address %s\n", addr)
	}
	fmt.Fprintf(w, "%s exists: %t\n", kernel.Device, k.Device)
	for _, addr := range slices.SortedFunc(maps.Keys(k.Addresses), netip.Addr.Compare) {
		for _, b := range []kernel.Binding{kernel.OnDevice, kernel.Routed} {
			if k.Addresses[addr].Includes(b) {
				fmt.Fprintln(w, kernel.BoundAddress{Addr: addr, Binding: b}.Listed())
			}
		}
	}
	return errors.Join(err, unreadOf(k))
}

func unreadOf(k *explain.Kernel) (err error) {
	for _, part := range slices.Sorted(maps.Keys(k.Unread)) {
		err = errors.Join(err, fmt.Errorf("%s: %s", part, k.Unread[part].Why))
	}
	return err
}

func (m *Machine) writeRoutes(ctx context.Context, w io.Writer) error {
	return m.all(ctx, w, "/proc/net/route", "/proc/net/ipv6_route")
}

// concerns matches kernel messages about networking and memory.
var concerns = regexp.MustCompile(`(?i)ip_?vs|ip_set|netfilter|nf_|nft|xt_|iptables|conntrack|kube-ipvs|neighbou?r|unregister_netdevice|out of memory|oom|BUG:|Oops|Call Trace`)

func (m *Machine) writeKernelLog(ctx context.Context, w io.Writer) error {
	text, err := m.Host(ctx).KernelLog()
	for line := range strings.Lines(text) {
		if concerns.MatchString(line) {
			_, _ = io.WriteString(w, line)
		}
	}
	return err
}

// agentLog writes the end of the agent's log from the systemd journal. If the agent runs in a pod, only
// `kubectl logs` shows its log.
func agentLog(ctx context.Context, w io.Writer) error {
	journalctl, err := exec.LookPath("journalctl")
	if err != nil {
		return errors.New("journalctl not found; if the agent runs in a pod, add the output of `kubectl logs`")
	}
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, journalctl, "-u", "kube-ipvs", "-n", "2000", "--no-pager", "-o", "short-iso")
	cmd.Stdout, cmd.Stderr = w, &stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("journalctl: %w: %s", err, strings.TrimSpace(stderr.String()))
	}
	return nil
}

func (m *Machine) writeSets(ctx context.Context, w io.Writer) error {
	k := m.Kernel(ctx, Look{Parts: []explain.Part{explain.Sets}})
	for _, name := range slices.Sorted(maps.Keys(k.Sets)) {
		fmt.Fprintf(w, "create %s # %d entries\n", k.Sets[name], len(k.Members[name]))
		lines := make([]string, 0, len(k.Members[name]))
		for element := range k.Members[name] {
			lines = append(lines, fmt.Sprintf("add %s %s\n", name, element))
		}
		slices.Sort(lines)
		if _, err := io.WriteString(w, strings.Join(lines, "")); err != nil {
			return err
		}
	}
	return unreadOf(k)
}

func isOurs(r kernel.SavedRule) bool {
	return slices.Contains(compile.Chains, r.ChainID) || r.Tag != "" || slices.ContainsFunc(compile.Chains, func(c kernel.ChainID) bool {
		return c.Table == r.Table && slices.Contains(r.Args(), c.Chain)
	})
}

func compareChains(a, b kernel.ChainID) int {
	return cmp.Or(cmp.Compare(a.Table, b.Table), cmp.Compare(a.Chain, b.Chain))
}

// writeRules writes the agent's rules. It only counts the rules of other programs, because their comments may
// contain anything.
func (m *Machine) writeRules(ctx context.Context, w io.Writer) error {
	k := m.Kernel(ctx, Look{Parts: []explain.Part{explain.Rules, explain.Chains}})
	for _, family := range inet.Families {
		rules := k.Rules[family].Rules
		for _, chain := range slices.SortedFunc(maps.Keys(rules), compareChains) {
			others := 0
			for _, r := range rules[chain] {
				if isOurs(r) {
					fmt.Fprintf(w, "%s %s\n", family, r)
				} else {
					others++
				}
			}
			fmt.Fprintf(w, "# %s -t %s %s: policy %s, %d rules of other programs\n", family, chain.Table, chain.Chain, cmp.Or(k.Rules[family].Policies[chain], "-"), others)
		}
	}
	return unreadOf(k)
}

// writeOthers writes the names of other programs' nftables chains and ipsets, without their content.
func (m *Machine) writeOthers(ctx context.Context, w io.Writer) error {
	k := m.Kernel(ctx, Look{Parts: []explain.Part{explain.Rules, explain.Chains}})
	for _, c := range k.Chains {
		fmt.Fprintf(w, "nftables table %s %s, chain %s: %s, priority %d, %d rules, drops %t\n", c.Family, c.Table, c.Name, c.Kind, c.Priority, c.Rules, c.Drops)
	}
	for _, name := range slices.Sorted(maps.Keys(k.OtherSets)) {
		fmt.Fprintf(w, "ipset %s: type %s, %d elements\n", name, k.OtherSets[name].Type, len(k.OtherSets[name].Elements))
	}
	return unreadOf(k)
}

// writeConnections counts the connections by virtual server and by state.
func (m *Machine) writeConnections(ctx context.Context, w io.Writer, socket string) error {
	counts, states := tally{}, map[string]int{}
	k := m.kernelOrProcess(ctx, Look{Parts: []explain.Part{explain.Servers}, Socket: socket, Tracked: func(c tracked) {
		counts.add(c)
		states[c.Protocol+" "+c.State]++
	}})
	counts.store(k.Servers)
	total := uint64(0)
	for _, key := range slices.SortedFunc(maps.Keys(k.Servers), kernel.ServerKey.Compare) {
		active, inactive := uint64(0), uint64(0)
		for _, d := range k.Servers[key].Destinations {
			active, inactive = active+uint64(d.Stats.Active), inactive+uint64(d.Stats.Inactive)
		}
		total += active + inactive
		if active+inactive > 0 {
			fmt.Fprintf(w, "%s: %d active, %d inactive\n", key, active, inactive)
		}
	}
	if !k.Mode.NFTablesBalances() {
		if total > maxCounted {
			return errors.Join(fmt.Errorf("%d connections are too many to count by state", total), unreadOf(k))
		}
		k = m.kernelOrProcess(ctx, Look{Parts: []explain.Part{explain.Servers, explain.Connections}, Socket: socket})
		for _, c := range k.Connections {
			states[c.Protocol+" "+c.State]++
		}
	}
	for _, state := range slices.Sorted(maps.Keys(states)) {
		fmt.Fprintf(w, "%s: %d\n", state, states[state])
	}
	return unreadOf(k)
}

const (
	maxMetrics      = 8 << 20 // bytes
	metricsPatience = 10 * time.Second
)

func (m *Machine) writeMetrics(ctx context.Context, w io.Writer, v *view.View) error {
	address := settingsOf(v).MetricsAddress
	if address == "" {
		return errors.New("the metrics server is off (metricsBindAddress)")
	}
	for from, to := range map[string]string{"0.0.0.0:": "127.0.0.1:", "[::]:": "[::1]:"} {
		if port, is := strings.CutPrefix(address, from); is {
			address = to + port
		}
	}
	status, body, err := m.Metrics(ctx, "http://"+address+"/metrics")
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("status %d", status)
	}
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, body)
	return err
}

// settingsOf returns the agent's settings, or the defaults if no agent responds.
func settingsOf(v *view.View) *config.Settings {
	values := map[string]string{}
	if v != nil {
		for _, s := range v.Node.Settings {
			values[s.Name] = s.Value
		}
	}
	return config.With(values)
}

const serviceAccountToken = "/var/run/secrets/kubernetes.io/serviceaccount/token"

// Secrets returns the credentials of the agent and of this process, which must not appear in a bundle. file is the
// agent's configuration file; empty if there is none.
func (m *Machine) Secrets(ctx context.Context, v *view.View, file string) *bundle.Secrets {
	host := m.Host(ctx)
	read := func(file string) string {
		text, _ := host.ReadFile(file) // a file that cannot be read here cannot be in the bundle either
		return strings.TrimSpace(string(text))
	}
	kubeconfig := read(settingsOf(v).Kubeconfig)
	if loaded, err := (&config.Flags{File: file}).Load(); err == nil {
		kubeconfig += "\n" + read(loaded.Settings.Kubeconfig)
	}
	values := slices.Concat(bundle.Credentials(strings.Join(os.Environ(), "\n")), bundle.Credentials(kubeconfig), []string{read(serviceAccountToken)})
	for _, m := range tokenFile.FindAllStringSubmatch(kubeconfig, -1) {
		values = append(values, read(m[1]))
	}
	return bundle.NewSecrets(values)
}

var tokenFile = regexp.MustCompile(`(?m)^[\s-]*tokenFile:\s*["']?(/[^\s"']+)`)
