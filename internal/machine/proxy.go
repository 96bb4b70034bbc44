package machine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

const proxyModePort = ":10249"

// proxyModeURLs are the default URLs at which kube-proxy and the agent serve their mode. While cleanup holds the node
// lock, only kube-proxy can respond.
var proxyModeURLs = []string{"http://127.0.0.1:10249/proxyMode", "http://[::1]:10249/proxyMode"}

// proxyPatience is the timeout for kube-proxy's response, long enough for a busy node.
const proxyPatience = 10 * time.Second

// proxyHealthURLs are kube-proxy's default health URLs. The agent may serve its own health at these URLs.
var proxyHealthURLs = []string{"http://127.0.0.1:10256", "http://[::1]:10256"}

// justWritten is how long kube-proxy counts as running after it has written to the agent's chains, because it may be
// restarting.
const justWritten = 10 * time.Minute

// kubeProxy returns evidence that kube-proxy might be running in ipvs mode, or "" if there is none. A timeout counts as
// evidence, because a busy node responds late. A refused connection does not.
func (m *Machine) kubeProxy(ctx context.Context, rules string) (why string) {
	if why, mode := m.servedMode(ctx); mode != "" && mode != "ipvs" {
		return "" // kube-proxy runs in another mode
	} else if why != "" {
		return why
	}
	if process := m.FindProcess("kube-proxy", false); process != "" {
		return "process " + process + " is called kube-proxy"
	}
	if rules != "" {
		return "it has rewritten " + rules + " since kube-ipvs last wrote it"
	}
	return ""
}

// anyKubeProxy returns evidence that kube-proxy is running alongside the agent, in any mode, or "" if there is none.
func (m *Machine) anyKubeProxy(ctx context.Context, v *view.View, rules string) string {
	if process := m.FindProcess("kube-proxy", true); process != "" {
		return "process " + process + " is called kube-proxy"
	}
	for _, url := range m.ProxyHealth {
		if m.servesHealth(ctx, url) {
			return "according to " + url + "/healthz"
		}
	}
	for _, p := range v.NodeProblems { // the agent has identified the program on a port that it needs
		if strings.Contains(p.Text, "kube-proxy") && strings.Contains(p.Text, "uses this port") {
			return p.Text
		}
	}
	if !strings.HasSuffix(v.Node.Setting("metricsBindAddress", proxyModePort), proxyModePort) { // otherwise, the answer is the agent's
		if why, _ := m.servedMode(ctx); why != "" {
			return why
		}
	}
	if rules != "" {
		return "it has rewritten " + rules + " since kube-ipvs last wrote it"
	}
	for _, d := range v.Agent.Drifts {
		if ago := v.Time.Sub(d.Last); ago < justWritten && strings.Contains(strings.Join(d.What, "\n"), "by kube-proxy") {
			return fmt.Sprintf("%s ago, the agent repaired rules that kube-proxy had written", ago.Round(time.Second))
		}
	}
	return ""
}

// servedMode returns evidence that kube-proxy serves its mode, and the mode, if it answers. The agent may serve its own mode on the same port.
func (m *Machine) servedMode(ctx context.Context) (why, mode string) {
	for _, url := range m.ProxyModes {
		switch mode, err := m.askMode(ctx, url); {
		case err != nil:
			return fmt.Sprintf("%s does not answer: %v", url, err), ""
		case mode != "":
			return "according to " + url, mode
		}
	}
	return "", ""
}

// servesHealth reports whether kube-proxy serves its health at a URL. The agent serves the same response, but it
// also serves /readyz, and kube-proxy does not.
func (m *Machine) servesHealth(ctx context.Context, url string) bool {
	_, text, err := get(ctx, url+"/healthz", 256, m.ProxyPatience)
	if err != nil || !strings.Contains(text, "lastUpdated") {
		return false
	}
	status, _, err := get(ctx, url+"/readyz", 64, m.ProxyPatience)
	return err == nil && status == http.StatusNotFound
}

// askMode returns the mode that the program at a URL reports. The mode is empty if no program listens there, or if
// the program is not kube-proxy.
func (m *Machine) askMode(ctx context.Context, url string) (mode string, err error) {
	status, text, err := get(ctx, url, 64, m.ProxyPatience)
	if errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.ENETUNREACH) ||
		errors.Is(err, syscall.EAFNOSUPPORT) {
		return "", nil // no program listens, or this machine has no such address
	}
	if err != nil || status != http.StatusOK {
		return "", err
	}
	switch mode := strings.TrimSpace(text); mode {
	case "ipvs", "iptables", "nftables":
		return mode, nil
	}
	return "", nil
}

// findProcess returns the ID of a process with this name in this network namespace, or "" if none is visible. If unsure
// is true, it includes processes whose namespace it has no permission to read.
func findProcess(name string, unsure bool) (id string) {
	here, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return ""
	}
	names, _ := filepath.Glob("/proc/[0-9]*/comm")
	for _, file := range names {
		process := filepath.Dir(file)
		text, err := os.ReadFile(file)
		if err != nil || strings.TrimSpace(string(text)) != name {
			continue // another process, or a process that has ended
		}
		namespace, err := os.Readlink(filepath.Join(process, "ns", "net"))
		if err == nil && namespace == here || unsure && errors.Is(err, fs.ErrPermission) {
			return filepath.Base(process)
		}
	}
	return ""
}
