package doctor

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"path"
	"regexp"
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
	// ReadFile reads a file of /proc, /sys or /etc.
	ReadFile(name string) ([]byte, error)
	// Names lists a directory.
	Names(dir string) ([]string, error)
	// Get requests a URL of this host.
	Get(url string) (status int, body string, err error)
	// SetNames lists the ipsets whose names begin with a prefix.
	SetNames(prefix string) ([]string, error)
	// ClockSynchronized reports whether a time service corrects the kernel's clock.
	ClockSynchronized() (bool, error)
}

// Facts are the input of the checks.
type Facts struct {
	Now time.Time
	// View is the agent's view. If the agent did not respond, it is nil and Silence is the reason.
	View      *view.View
	Silence   string
	Preflight []finding.Finding
	// Mode is the one that this machine's next agent would choose.
	Mode kernel.Mode
	// Release is the kernel release, as uname -r prints it.
	Release string
	// VirtualServers, Destinations and Connections count all objects in the kernel, including foreign ones.
	VirtualServers, Destinations int
	Connections                  uint64
	Rules                        map[inet.Family]kernel.RuleListing
	Chains                       []kernel.BaseChain
	// Walks are paths of packets to Services, and what happens on them.
	Walks []Walk
	// Unread says what could not be read, and why.
	Unread []string

	// Read fills in the rest.

	Sysctls map[string]string
	// TableSize is the number of hash buckets of IPVS's connection table; 0 if unknown.
	TableSize int
	Modules   []string
	// BootModules are loaded at boot; nil if the host's files are not visible.
	BootModules []string
	// Processes are running programs from the list proxies, as "name (PID)".
	Processes []string
	// Uplinks are interfaces with a default route.
	Uplinks    []string
	Interfaces []Interface
	// Announcers are running programs from the list announcers, as "name (process PID)".
	Announcers   []string
	Answers      []Answer
	Certificates []Certificate
	// ProxySets are the ipsets of kube-proxy.
	ProxySets []string
	// ClockFree is true if nothing corrects the clock.
	ClockFree bool
	// Memory and MemoryLeft are kilobytes; 0 if unknown.
	Memory, MemoryLeft uint64
	Neighbors          int
}

// Answer is the response of a port on this host.
type Answer struct {
	URL    string
	Status int
	Body   string
	Error  string
}

// Certificate is a certificate that the agent uses.
type Certificate struct {
	File         string
	Begins, Ends time.Time
}

// proxies are programs that serve Services.
var proxies = []string{"kube-proxy", "kube-router"}

const (
	serviceAccountCA  = "/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"
	defaultHealth     = "0.0.0.0:10256"
	defaultMetrics    = "127.0.0.1:10249"
	bridgeModule      = "br_netfilter"
	keepalive         = "net/ipv4/tcp_keepalive_time"
	conntrackCount    = "net/netfilter/nf_conntrack_count"
	conntrackMax      = "net/netfilter/nf_conntrack_max"
	runEstimation     = "net/ipv4/vs/run_estimation"
	reversePathPrefix = "net/ipv4/conf/"
)

// Read adds the facts from the host's files and ports.
func (f *Facts) Read(h Host) {
	f.readRoutes(h)
	f.readSysctls(h)
	f.readModules(h)
	f.readProcesses(h)
	f.readPorts(h)
	f.readCertificates(h)
	f.readInterfaces(h)
	f.readMemory(h)
	f.readNeighbors(h)
	f.readClock(h)
	f.readProxySets(h)
	if text, err := h.ReadFile("/proc/net/ip_vs"); err == nil {
		if _, size, ok := strings.Cut(string(text), "(size="); ok {
			f.TableSize, _ = strconv.Atoi(size[:max(strings.IndexByte(size, ')'), 0)])
		}
	}
}

func (f *Facts) readSysctls(h Host) {
	names := []string{keepalive, conntrackCount, conntrackMax, runEstimation, neighborLimit}
	for _, name := range append([]string{"all"}, f.Uplinks...) {
		names = append(names, reversePathPrefix+name+"/rp_filter", reversePathPrefix+name+arpIgnore, reversePathPrefix+name+arpAnnounce)
	}
	if f.View != nil {
		for _, s := range f.View.Base.Sysctls {
			names = append(names, s.Name)
		}
	}
	f.Sysctls = map[string]string{}
	for _, name := range names {
		if text, err := h.ReadFile("/proc/sys/" + name); err == nil {
			f.Sysctls[name] = strings.Join(strings.Fields(string(text)), " ")
		}
	}
}

// number is a sysctl's value; ok is false if it is unknown.
func (f *Facts) number(sysctl string) (n int, ok bool) {
	n, err := strconv.Atoi(f.Sysctls[sysctl])
	return n, err == nil
}

// Modules lists the loaded modules whose names begin with a prefix, sorted.
func Modules(h Host, prefix string) []string {
	modules := []string{}
	text, _ := h.ReadFile("/proc/modules") // a kernel without modules lacks it
	for line := range strings.Lines(string(text)) {
		if name, _, _ := strings.Cut(line, " "); strings.HasPrefix(name, prefix) {
			modules = append(modules, name)
		}
	}
	slices.Sort(modules)
	return modules
}

func (f *Facts) readModules(h Host) {
	f.Modules = Modules(h, "")
	if _, err := h.ReadFile("/etc/os-release"); err != nil {
		f.Unread = append(f.Unread, "modules loaded at boot: the host's /etc is not visible from here")
		return
	}
	f.BootModules = []string{}
	files := []string{"/etc/modules"}
	for _, dir := range []string{"/etc/modules-load.d", "/usr/lib/modules-load.d", "/run/modules-load.d"} {
		names, _ := h.Names(dir) // most systems lack some of them
		for _, name := range names {
			files = append(files, path.Join(dir, name))
		}
	}
	for _, file := range files {
		text, err := h.ReadFile(file)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			f.BootModules = append(f.BootModules, strings.ReplaceAll(strings.TrimSpace(line), "-", "_"))
		}
	}
}

func (f *Facts) readProcesses(h Host) {
	names, err := h.Names("/proc")
	if err != nil {
		return
	}
	for _, pid := range names {
		if _, err := strconv.Atoi(pid); err != nil {
			continue
		}
		comm, err := h.ReadFile("/proc/" + pid + "/comm")
		if err != nil {
			continue // ended
		}
		switch name := strings.TrimSpace(string(comm)); {
		case slices.Contains(proxies, name):
			f.Processes = append(f.Processes, fmt.Sprintf("%s (process %s)", name, pid))
		case slices.Contains(announcers, name):
			f.Announcers = append(f.Announcers, fmt.Sprintf("%s (process %s)", name, pid))
		case pid == "1" && name == "kube-ipvs": // the first process of a container
			f.Unread = append(f.Unread, "processes of other proxies: the host's processes are not visible from here")
		}
	}
}

// readRoutes finds the interfaces with a default route: destination and mask 0 in /proc/net/route.
func (f *Facts) readRoutes(h Host) {
	text, err := h.ReadFile("/proc/net/route")
	if err != nil {
		return
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) > 7 && fields[1] == "00000000" && fields[7] == "00000000" && !slices.Contains(f.Uplinks, fields[0]) {
			f.Uplinks = append(f.Uplinks, fields[0])
		}
	}
}

// Needs returns what the running agent needs of the kernel, except sysctls, which checkSysctls compares.
func (f *Facts) Needs() preflight.Needs {
	needs := preflight.Needs{Schedulers: []string{model.LastResort}, DataPlane: f.mode().DataPlane(), Rules: f.mode().Rules()}
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

// mode is that of the running agent, or of the next one.
func (f *Facts) mode() kernel.Mode {
	if f.View != nil {
		return f.View.Node.Mode
	}
	return f.Mode
}

// setting returns a setting of the running agent, or the default if it is not set.
func (f *Facts) setting(name, byDefault string) string {
	if f.View != nil {
		for _, s := range f.View.Node.Settings {
			if s.Name == name {
				return s.Value
			}
		}
	}
	return byDefault
}

// readPorts queries the agent's ports. Without an agent, another proxy may respond on them.
func (f *Facts) readPorts(h Host) {
	metrics := []string{"/metrics"}
	if f.View == nil {
		metrics = []string{"/proxyMode"}
	}
	for address, paths := range map[string][]string{
		f.setting("healthzBindAddress", defaultHealth): {"/livez", "/readyz"}, f.setting("metricsBindAddress", defaultMetrics): metrics,
	} {
		if address == "" || f.View == nil && paths[0] != "/proxyMode" {
			continue
		}
		for _, p := range paths {
			answer := Answer{URL: "http://" + local(address) + p}
			var err error
			if answer.Status, answer.Body, err = h.Get(answer.URL); err != nil {
				answer.Error = err.Error()
			}
			f.Answers = append(f.Answers, answer)
		}
	}
	slices.SortFunc(f.Answers, func(a, b Answer) int { return strings.Compare(a.URL, b.URL) })
}

// local replaces the unspecified address, which a server listens on, with a loopback address to connect to.
func local(address string) string {
	for _, every := range []string{"0.0.0.0:", "[::]:", ":"} {
		if port, ok := strings.CutPrefix(address, every); ok {
			return "127.0.0.1:" + port
		}
	}
	return address
}

var certificateLine = regexp.MustCompile(`(?m)^\s*(?:- )?(client-certificate|certificate-authority)(-data)?: *"?([^"\s]+)"?\s*$`)

func (f *Facts) readCertificates(h Host) {
	kubeconfig := f.setting("clientConnection.kubeconfig", "")
	files := []string{serviceAccountCA}
	if text, err := h.ReadFile(kubeconfig); err == nil && kubeconfig != "" {
		files = nil
		for _, m := range certificateLine.FindAllStringSubmatch(string(text), -1) {
			switch file := m[3]; {
			case m[2] != "":
				if content, err := base64.StdEncoding.DecodeString(m[3]); err == nil {
					f.addCertificates(kubeconfig+" ("+m[1]+m[2]+")", content)
				}
			case path.IsAbs(file):
				files = append(files, file)
			default:
				files = append(files, path.Join(path.Dir(kubeconfig), file))
			}
		}
	}
	for _, file := range files {
		if content, err := h.ReadFile(file); err == nil {
			f.addCertificates(file, content)
		}
	}
}

// addCertificates adds the certificate in a file that expires first.
func (f *Facts) addCertificates(file string, content []byte) {
	var first *x509.Certificate
	for block, rest := pem.Decode(content); block != nil; block, rest = pem.Decode(rest) {
		if c, err := x509.ParseCertificate(block.Bytes); err == nil && (first == nil || c.NotAfter.Before(first.NotAfter)) {
			first = c
		}
	}
	if first != nil {
		f.Certificates = append(f.Certificates, Certificate{file, first.NotBefore, first.NotAfter})
	}
}
