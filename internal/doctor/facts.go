package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/preflight"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// Host is the machine that doctor examines.
type Host interface {
	// ReadFile reads a file in /proc, /sys, /etc or /run. The error is fs.ErrNotExist if it does not exist.
	ReadFile(name string) ([]byte, error)
	// Tail reads the end of a log.
	Tail(name string) ([]byte, error)
	// Names lists a directory.
	Names(dir string) ([]string, error)
	// Get requests a URL on this host.
	Get(url string) (status int, body string, err error)
	// Leftovers lists the kernel objects that kube-proxy uses, or has left behind.
	Leftovers() ([]kernel.Leftover, error)
	// ClockSynchronized reports whether a time service corrects the kernel's clock.
	ClockSynchronized() (bool, error)
	// Interfaces returns the network interfaces, sorted by name.
	Interfaces() ([]kernel.Interface, error)
	// Pods returns addresses of pods on this host, sorted.
	Pods() ([]kernel.Pod, error)
	// APIServer returns the API server's address from the pod's environment, or "" outside a pod.
	APIServer() string
	// ServerCertificates returns the certificates that a TLS server presents, unverified. The server name may be empty.
	ServerCertificates(address, serverName string) (chain [][]byte, err error)
	// KernelLog returns the end of the kernel's log.
	KernelLog() (string, error)
	// ConnectPrograms counts the eBPF programs attached to the connect system call.
	ConnectPrograms() (int, error)
	// Neighbors lists the neighbor entries, and Queues the queueing disciplines, of this network namespace.
	Neighbors() ([]kernel.Neighbor, error)
	Queues() ([]kernel.Queue, error)
}

// Facts are the input of the checks.
type Facts struct {
	Now time.Time
	// View is the agent's view. If the agent did not respond, View is nil and Silence is the reason.
	View      *view.View
	Silence   string
	Preflight []finding.Finding
	// Namespace is doctor's network namespace; empty if it is unknown.
	Namespace string
	// Holder is the process that last took the node lock; 0 if it is unknown.
	Holder int
	// Mode is the mode that an agent would choose if it started now.
	Mode kernel.Mode
	// Release is the kernel release, as uname -r prints it.
	Release string
	// VirtualServers, Destinations and Connections count all objects in the kernel, including foreign ones.
	VirtualServers, Destinations int
	Connections                  uint64
	// IPv6Servers counts the virtual servers with an IPv6 address. NodePorts are the ports of virtual servers at the
	// node's own addresses.
	IPv6Servers int
	NodePorts   []uint16
	// Legacy are the rules of iptables-legacy on a node that uses iptables-nft. Packets also pass these rules.
	Rules, Legacy map[inet.Family]kernel.RuleListing
	Chains        []kernel.BaseChain
	// Variant is the iptables variant in use, nft or legacy, or "" if iptables is not in use.
	Variant string
	// Walks are the traced paths of packets to Services.
	Walks []Walk
	// Endpoints are the ready endpoints on this node to which doctor connected directly.
	Endpoints []Reached
	// Echoed are the endpoints on other nodes to which doctor sent test packets.
	Echoed []Echo
	// Probed lists this node's addresses for which doctor sent ARP requests.
	Probed []Probed
	// Pods are addresses of pods on this node, as the kernel knows them.
	Pods []kernel.Pod
	// Outsiders are clients on other machines.
	Outsiders []Outsider
	// Unrouted are the addresses on kube-ipvs0, and the node's own addresses, without a local route.
	Unrouted []netip.Addr
	// Routes are the routes of this node's packets to endpoints and clients.
	Routes map[netip.Addr]kernel.Route
	// counted are the drop counters that the last call of Count read. grown are those that have grown since the call before it, with the differences.
	counted, grown map[counter]uint64
	// Unread lists the facts that could not be read, with the reasons.
	Unread []string

	// Read sets the fields below.

	Sysctls map[string]string
	// TableSize is the number of hash buckets of IPVS's connection table; 0 if unknown.
	TableSize int
	Modules   []string
	// BootModules are the modules loaded at boot; nil if the host's files are not visible.
	BootModules []string
	// Processes lists the running proxies, as "name (PID)".
	Processes []string
	// Programs lists the watched programs that are running.
	Programs []program
	// Backup is true if a thread of IPVS's backup daemon is running.
	Backup bool
	// Container is true if doctor runs in a container, where the host's processes are not visible.
	Container bool
	// Uplinks are the interfaces with a default route. IPv6Only is true if all these routes are IPv6 routes. Halves are the uplinks with two
	// routes to half of all addresses each, as VPNs add them.
	Uplinks  []string
	Halves   []string
	IPv6Only bool
	// Elsewhere lists routes to networks behind other interfaces.
	Elsewhere []string
	// Advertised are uplinks whose IPv6 default route comes from router advertisements.
	Advertised []string
	Interfaces []kernel.Interface
	// NeighborEntries and Queues belong to all interfaces.
	NeighborEntries []kernel.Neighbor
	Queues          []kernel.Queue
	// Announcers lists the running announcers, as "name (process PID)".
	Announcers  []string
	Answers     []Answer
	Credentials []Credential
	// OldAuthorities names expired CAs in a bundle that also contains a valid CA.
	OldAuthorities string
	// Leftovers are the objects of kube-proxy.
	Leftovers []kernel.Leftover
	// ClockFree is true if no time service corrects the clock.
	ClockFree bool
	// Memory and MemoryLeft are in kilobytes; 0 if unknown.
	Memory, MemoryLeft uint64
	Neighbors          map[inet.Family]int
	// ConnectPrograms counts the eBPF programs attached to the connect system call. BPFMaps are the pinned maps of
	// other data planes.
	ConnectPrograms int
	BPFMaps         []string
	// K3sProxyOff is true if a setting of K3s disables its kube-proxy.
	K3sProxyOff bool
	// Managers are the network services that manage kube-ipvs0. Unlisted are the services whose configuration does not
	// exclude the device.
	Managers, Unlisted []string
	// Log is the end of the kernel's log. LogUnread is the error from reading it. Uptime is the kernel's uptime in
	// seconds.
	Log       string
	LogUnread error
	Uptime    int
	// Denials are the actions of the agent that a security module has denied.
	Denials []string
	// Files describes a silent agent that has no file descriptors left; empty if there is none.
	Files string
}

// Answer is the HTTP response from a port on this host.
type Answer struct {
	URL    string
	Status int
	Body   string
	Error  string
}

// proxies lists programs that serve Services.
var proxies = []string{"kube-proxy", "kube-router"}

const (
	defaultHealth     = "0.0.0.0:10256"
	defaultMetrics    = "127.0.0.1:10249"
	bridgeModule      = "br_netfilter"
	keepalive         = "net/ipv4/tcp_keepalive_time"
	conntrackCount    = "net/netfilter/nf_conntrack_count"
	conntrackMax      = "net/netfilter/nf_conntrack_max"
	runEstimation     = "net/ipv4/vs/run_estimation"
	reversePathPrefix = "net/ipv4/conf/"
	kubeProxyMode     = "http://127.0.0.1:10249/proxyMode"
	agentSettings     = "http://127.0.0.1:10249/configz"
)

// Read gathers the facts from the host's files and ports.
func (f *Facts) Read(host Host) {
	h := reader{host, f}
	f.readProcesses(h)
	f.readFiles(h)
	if f.Interfaces == nil { // doctor sent no packets
		f.ReadNetwork(host)
	}
	if f.counted == nil { // doctor opened no connections
		f.Count(host)
	}
	f.readLinks(h)
	f.readSysctls(h)
	f.readModules(h)
	f.readPorts(h)
	f.readCredentials(h)
	f.readMemory(h)
	f.readNeighbors(h)
	f.readClock(h)
	f.readLeftovers(h)
	f.readDataPlanes(h)
	f.readManagers(h)
	f.readLog(h)
	f.readDenials(h)
	if text, exists := h.may("/proc/net/ip_vs", "IPVS connection table"); exists {
		if _, size, ok := strings.Cut(text, "(size="); ok {
			f.TableSize, _ = strconv.Atoi(size[:max(strings.IndexByte(size, ')'), 0)])
		}
	}
}

// sysctlNames lists the sysctls that the checks use. Some do not exist in every kernel.
func (f *Facts) sysctlNames() []string {
	names := []string{keepalive, conntrackCount, conntrackMax, runEstimation, localPorts, reservedPorts, ipv6Forwarding, backupOnly, defaultTTL}
	names = slices.Concat(names, dropping, f.linkSysctls())
	for _, family := range inet.Families {
		names = append(names, neighborLimits[family])
	}
	for _, name := range append([]string{"all"}, f.routed()...) {
		for _, part := range []string{"/rp_filter", "/forwarding", arpIgnore, arpAnnounce} {
			names = append(names, reversePathPrefix+name+part)
		}
	}
	for _, i := range f.podDevices() {
		for _, trait := range traits {
			names = append(names, trait.sysctl(i.Name))
		}
	}
	for _, name := range f.Advertised {
		names = append(names, ipv6Conf+name+acceptRA)
	}
	for _, name := range append([]string{"all", kernel.Device, "lo"}, f.Uplinks...) {
		names = append(names, ipv6Conf+name+disableIPv6)
	}
	return names
}

func (f *Facts) readSysctls(h reader) {
	names := f.sysctlNames()
	needed := map[string]bool{} // other sysctls do not exist in every kernel
	if f.View != nil {
		for _, s := range f.View.Base.Sysctls {
			names, needed[s.Name] = append(names, s.Name), true
		}
	}
	f.Sysctls = map[string]string{}
	for _, name := range names {
		text, err := h.ReadFile("/proc/sys/" + name)
		switch {
		case err == nil:
			f.Sysctls[name] = strings.Join(strings.Fields(string(text)), " ")
		case needed[name] || !errors.Is(err, fs.ErrNotExist):
			f.unread("sysctl "+name, err)
		}
	}
	for _, name := range []string{localPorts, reservedPorts} {
		if _, err := parsePorts(f.Sysctls[name]); err != nil {
			f.unread("sysctl "+name, err)
		}
	}
}

// number returns the value of a sysctl; ok is false if the value is unknown.
func (f *Facts) number(sysctl string) (n int, ok bool) {
	n, err := strconv.Atoi(f.Sysctls[sysctl])
	return n, err == nil
}

// CountersStopped reports whether IPVS does not update its counters of packets and bytes.
func CountersStopped(h Host) bool {
	value, err := h.ReadFile("/proc/sys/" + runEstimation)
	return err == nil && strings.TrimSpace(string(value)) == "0"
}

// Modules lists the loaded modules with a name prefix, sorted.
func Modules(h Host, prefix string) []string {
	modules := []string{}
	text, _ := h.ReadFile("/proc/modules") // missing in a kernel without module support
	for line := range strings.Lines(string(text)) {
		if name, _, _ := strings.Cut(line, " "); strings.HasPrefix(name, prefix) {
			modules = append(modules, name)
		}
	}
	slices.Sort(modules)
	return modules
}

func (f *Facts) readModules(h reader) {
	const subject = "modules loaded at boot"
	h.may("/proc/modules", "loaded modules")
	f.Modules = Modules(h, "")
	if _, err := h.ReadFile("/etc/os-release"); err != nil {
		f.unread(subject, errHostFiles)
		return
	}
	f.BootModules = []string{}
	files := []string{"/etc/modules"}
	for _, dir := range []string{"/etc/modules-load.d", "/usr/lib/modules-load.d", "/run/modules-load.d"} {
		for _, name := range h.mayList(dir, subject) {
			files = append(files, path.Join(dir, name))
		}
	}
	for _, file := range files {
		text, _ := h.may(file, subject)
		for line := range strings.Lines(text) {
			f.BootModules = append(f.BootModules, strings.ReplaceAll(strings.TrimSpace(line), "-", "_"))
		}
	}
}

type program struct{ name, pid string }

func (p program) String() string { return fmt.Sprintf("%s (process %s)", p.name, p.pid) }

func (f *Facts) readProcesses(h reader) {
	const subject = "processes of other proxies"
	names, err := h.Names("/proc")
	if err != nil {
		f.unread(subject, err)
		return
	}
	for _, pid := range names {
		if _, err := strconv.Atoi(pid); err != nil {
			continue
		}
		comm, _ := h.may("/proc/"+pid+"/comm", subject) // a process may have exited
		switch p := (program{strings.TrimSpace(comm), pid}); {
		case slices.Contains(proxies, p.name):
			f.Processes = append(f.Processes, p.String())
		case slices.Contains(announcers, p.name):
			f.Announcers = append(f.Announcers, p.String())
		case slices.Contains(watched, p.name):
			f.Programs = append(f.Programs, p)
		case strings.HasPrefix(p.name, "ipvs-b:"):
			f.Backup = true
		case pid == "1" && p.name == "kube-ipvs": // the first process of a container
			f.Container = true
			f.unread(subject, errHostProcesses)
		}
	}
}

var (
	errHostFiles     = errors.New("the host's /etc is not visible from this container")
	errHostProcesses = errors.New("the host's processes are not visible from this container")
)

// Needs returns the kernel features that the running agent requires. checkSysctls covers the sysctls.
func (f *Facts) Needs() preflight.Needs {
	needs := preflight.Needs{Schedulers: []string{model.LastResort}, DataPlane: f.mode().DataPlane(), Rules: f.mode().Rules(), InProcess: f.mode() == kernel.Userspace}
	if own := f.setting("ipvs.scheduler", model.LastResort); own != model.LastResort {
		needs.Schedulers = append(needs.Schedulers, own)
	}
	for _, family := range inet.Families {
		if slices.Contains(f.View.Node.Families, family.String()) {
			needs.Families = append(needs.Families, family)
		}
	}
	return needs
}

// mode returns the mode of the running agent, or the mode that an agent would choose if it started now.
func (f *Facts) mode() kernel.Mode {
	if f.View != nil {
		return f.View.Node.Mode
	}
	return f.Mode
}

// setting returns a setting of the running agent, or the default if it is not set.
func (f *Facts) setting(name, byDefault string) string {
	if f.View == nil {
		return byDefault
	}
	return f.View.Node.Setting(name, byDefault)
}

// readPorts queries the agent's ports. It also queries kube-proxy's port, unless the agent uses that port itself:
// another proxy may respond.
func (f *Facts) readPorts(h reader) {
	health, metrics := f.setting("healthzBindAddress", defaultHealth), f.setting("metricsBindAddress", defaultMetrics)
	var urls []string
	if f.View == nil || local(metrics) != defaultMetrics {
		urls = append(urls, kubeProxyMode)
	}
	if f.View != nil {
		for _, p := range []string{"/livez", "/readyz"} {
			urls = append(urls, "http://"+local(health)+p)
		}
		urls = append(urls, "http://"+local(metrics)+"/metrics")
	}
	for _, url := range urls {
		if strings.HasPrefix(url, "http:///") { // no address: the server is off
			continue
		}
		answer := Answer{URL: url}
		var err error
		if answer.Status, answer.Body, err = h.Get(url); err != nil {
			answer.Error = err.Error()
			nobody := strings.Contains(answer.Error, "refused") || strings.Contains(answer.Error, "unreachable")
			if url == kubeProxyMode && !nobody {
				f.unread("kube-proxy's port", err)
			}
		}
		if url == kubeProxyMode && answer.Status == 200 && agentServes(h) {
			continue
		}
		f.Answers = append(f.Answers, answer)
	}
	slices.SortFunc(f.Answers, func(a, b Answer) int { return strings.Compare(a.URL, b.URL) })
}

// agentServes reports whether the program on kube-proxy's port is an agent, which may serve its metrics although its status socket does not
// respond.
func agentServes(h reader) bool {
	_, body, err := h.Get(agentSettings)
	return err == nil && strings.Contains(body, "config.kube-ipvs.io")
}

// local replaces the unspecified address, to which no client can connect, with a loopback address.
func local(address string) string {
	for _, every := range []string{"0.0.0.0:", "[::]:", ":"} {
		if port, ok := strings.CutPrefix(address, every); ok {
			return "127.0.0.1:" + port
		}
	}
	return address
}
