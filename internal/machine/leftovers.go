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

// proxyHealthURLs are where kube-proxy serves its health by default. The agent may serve its own there.
var proxyHealthURLs = []string{"http://127.0.0.1:10256", "http://[::1]:10256"}

// justWritten is how long after kube-proxy has written into the agent's chains it counts as running, such as between two restarts.
const justWritten = 10 * time.Minute

// MayRemoveLeftovers returns an error if kube-proxy's objects may be in use. v is nil if no agent responds, and silence is the reason. rules names
// a chain of the agent that kube-proxy has written since; empty if there is none.
func (m *Machine) MayRemoveLeftovers(ctx context.Context, v *view.View, silence error, rules string) error {
	const alone = "until an agent does, kube-proxy's objects may be the only ones that serve this node; start the agent first"
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
			return errors.New("the agent serves only its own Services (serviceProxyName), and kube-proxy serves the others of this node")
		}
	}
	if why := m.anyKubeProxy(ctx, v, rules); why != "" {
		return fmt.Errorf("kube-proxy may run on this node (%s) and would write its objects again; stop it first", why)
	}
	return nil
}

// anyKubeProxy says why a kube-proxy may run beside the agent, in any mode; empty if none does.
func (m *Machine) anyKubeProxy(ctx context.Context, v *view.View, rules string) string {
	if process := m.FindProcess("kube-proxy", true); process != "" {
		return "process " + process + " is called kube-proxy"
	}
	for _, url := range m.ProxyHealth {
		if m.servesHealth(ctx, url) {
			return "according to " + url + "/healthz"
		}
	}
	if rules != "" {
		return "it has written its rules in " + rules + " since kube-ipvs did"
	}
	for _, d := range v.Agent.Drifts {
		if ago := v.Time.Sub(d.Last); ago < justWritten && strings.Contains(strings.Join(d.What, "\n"), "by kube-proxy") {
			return fmt.Sprintf("%s ago the agent repaired rules that kube-proxy had written", ago.Round(time.Second))
		}
	}
	return ""
}

// servesHealth reports whether kube-proxy serves its health at a URL. The agent's is the same, but it also has /readyz.
func (m *Machine) servesHealth(ctx context.Context, url string) bool {
	_, text, err := get(ctx, url+"/healthz", 256, m.ProxyPatience)
	if err != nil || !strings.Contains(text, "lastUpdated") {
		return false
	}
	status, _, err := get(ctx, url+"/readyz", 64, m.ProxyPatience)
	return err == nil && status == http.StatusNotFound
}
