package machine

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// proxyHealthURLs are kube-proxy's default health URLs. The agent may serve its own health there.
var proxyHealthURLs = []string{"http://127.0.0.1:10256", "http://[::1]:10256"}

// justWritten is how long kube-proxy counts as running after it has written to the agent's chains. It may be
// restarting.
const justWritten = 10 * time.Minute

// MayRemoveLeftovers returns an error if kube-proxy's objects may be in use. If no agent responds, v is nil and silence
// contains the reason. rules names a chain that kube-proxy has rewritten since the agent last wrote it; empty if there
// is none.
func (m *Machine) MayRemoveLeftovers(ctx context.Context, v *view.View, silence error, rules string) error {
	const alone = "the node may still depend on kube-proxy's objects; start the agent first"
	switch {
	case v == nil:
		return fmt.Errorf("no agent serves this node (%w): %s", silence, alone)
	case !v.Agent.Synced || v.Agent.LastFullSync == nil:
		return errors.New("the agent has not completed its first sync: " + alone)
	case v.Agent.Error != "":
		return fmt.Errorf("the agent's last sync failed (%s): %s", v.Agent.Error, alone)
	}
	for _, s := range v.Node.Settings {
		if s.Name == "serviceProxyName" && s.Value != "" {
			return errors.New("the agent serves only the Services with its service proxy name (serviceProxyName), and kube-proxy serves the others")
		}
	}
	if why := m.anyKubeProxy(ctx, v, rules); why != "" {
		return fmt.Errorf("kube-proxy might be running on this node (%s) and would recreate its objects; stop it first", why)
	}
	return nil
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
	if why := m.servesMode(ctx, v); why != "" {
		return why
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

// servesMode returns evidence that kube-proxy serves its mode, or "" if there is none. The agent may serve its own mode on the same port.
func (m *Machine) servesMode(ctx context.Context, v *view.View) string {
	for _, s := range v.Node.Settings {
		if s.Name != "metricsBindAddress" || strings.HasSuffix(s.Value, proxyModePort) {
			continue
		}
		for _, url := range m.ProxyModes {
			switch mode, err := m.askMode(ctx, url); {
			case err != nil:
				return fmt.Sprintf("%s does not answer: %v", url, err)
			case mode != "":
				return "according to " + url
			}
		}
	}
	return ""
}

// servesHealth reports whether kube-proxy serves its health at a URL. The agent serves the same response, but also
// /readyz.
func (m *Machine) servesHealth(ctx context.Context, url string) bool {
	_, text, err := get(ctx, url+"/healthz", 256, m.ProxyPatience)
	if err != nil || !strings.Contains(text, "lastUpdated") {
		return false
	}
	status, _, err := get(ctx, url+"/readyz", 64, m.ProxyPatience)
	return err == nil && status == http.StatusNotFound
}
