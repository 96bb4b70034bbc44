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
)

const proxyModePort = ":10249"

// proxyModeURLs are the default URLs at which kube-proxy and the agent serve their mode. While cleanup holds the node
// lock, only kube-proxy can respond.
var proxyModeURLs = []string{"http://127.0.0.1:10249/proxyMode", "http://[::1]:10249/proxyMode"}

// proxyPatience is the timeout for kube-proxy's response, long enough for a busy node.
const proxyPatience = 10 * time.Second

// BesideKubeProxy returns an error if a kube-proxy might be using objects that cleanup would remove. rules names a chain that
// kube-proxy has rewritten since the agent last wrote it; empty if there is none.
func (m *Machine) BesideKubeProxy(ctx context.Context, rules string) error {
	why := m.kubeProxy(ctx, rules)
	if why == "" {
		return nil
	}
	return fmt.Errorf("kube-proxy might be running on this node in ipvs mode (%s) and using the virtual servers that cleanup would remove; use --keep-services to "+
		"keep them. If kube-proxy was removed for good, run cleanup --kube-proxy-leftovers while the agent is running, and then repeat this cleanup", why)
}

// kubeProxy returns evidence that kube-proxy might be running in ipvs mode, or "" if there is none. A timeout counts as
// evidence, because a busy node responds late. A refused connection does not.
func (m *Machine) kubeProxy(ctx context.Context, rules string) (why string) {
	for _, url := range m.ProxyModes {
		switch mode, err := m.askMode(ctx, url); {
		case err != nil:
			return fmt.Sprintf("%s does not answer: %v", url, err)
		case mode == "ipvs":
			return "according to " + url
		case mode != "":
			return "" // kube-proxy runs in another mode
		}
	}
	if process := m.FindProcess("kube-proxy", false); process != "" {
		return "process " + process + " is called kube-proxy"
	}
	if rules != "" {
		return "it has rewritten " + rules + " since kube-ipvs last wrote it"
	}
	return ""
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
