package machine

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// TestKubeProxyOnItsPort: a kube-proxy that is not visible as a process is found by its port, or by a problem that
// the agent reports. A response on the agent's own port comes from the agent, so it does not count.
func TestKubeProxyOnItsPort(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("nftables")) }))
	defer server.Close()
	m := &Machine{ProxyModes: []string{server.URL}, ProxyPatience: proxyPatience, FindProcess: func(string, bool) string { return "" }}
	at := func(metrics string) *view.View {
		return &view.View{Node: view.Node{Settings: []view.Setting{{Name: "metricsBindAddress", Value: metrics}}}}
	}
	busy := at("127.0.0.1:10249")
	busy.NodeProblems = []view.NodeProblem{{Text: "Node here: the agent cannot serve metrics there: kube-proxy in iptables mode uses this port"}}
	for name, c := range map[string]struct {
		v    *view.View
		want string
	}{
		"the agent's port": {at("127.0.0.1:10249"), ""}, "the agent's default": {&view.View{}, ""},
		"another port": {at("127.0.0.1:9100"), server.URL}, "the agent has none": {at(""), server.URL}, "in use": {busy, "kube-proxy in iptables mode"},
	} {
		if got := m.anyKubeProxy(t.Context(), c.v, ""); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
