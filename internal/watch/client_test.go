package watch

import (
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
)

const kubeconfig = `apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: k, user: u}}]
clusters: [{name: k, cluster: {server: "https://192.0.2.1:6443"}}]
users: [{name: u, user: {token: secret}}]
`

func TestRESTConfig(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	dir := t.TempDir()
	good, bad, badServer := filepath.Join(dir, "good"), filepath.Join(dir, "bad"), filepath.Join(dir, "bad-server")
	for path, content := range map[string]string{
		good: kubeconfig, bad: "contexts: 7", badServer: strings.Replace(kubeconfig, "https://192.0.2.1:6443", "ht tp://x", 1),
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct{ name, kubeconfig, server, host, err string }{
		{name: "kubeconfig", kubeconfig: good, host: "https://192.0.2.1:6443"},
		{name: "kubeconfig and server", kubeconfig: good, server: "https://192.0.2.2:6443", host: "https://192.0.2.2:6443"},
		{name: "server", server: "http://192.0.2.2:8080", host: "http://192.0.2.2:8080"},
		{name: "neither", err: "Use --kubeconfig FILE"},
		{name: "missing kubeconfig", kubeconfig: filepath.Join(dir, "no"), err: "does not exist. Use --kubeconfig FILE"},
		{name: "invalid kubeconfig", kubeconfig: bad, err: "kubeconfig " + bad},
		{name: "invalid server in kubeconfig", kubeconfig: badServer, err: "must be the address of the API server"},
		{name: "invalid --master", server: "https://[::1", err: "--master is \"https://[::1\": must be the address of the API server"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			config, err := RESTConfig(tt.kubeconfig, tt.server)
			switch {
			case tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)):
				t.Errorf("got error %v, want %q", err, tt.err)
			case tt.err == "" && err != nil:
				t.Error(err)
			case tt.err == "" && config.Host != tt.host:
				t.Errorf("host %q", config.Host)
			case tt.kubeconfig != "" && err == nil && config.BearerToken != "secret":
				t.Error("the configuration has no credentials")
			}
		})
	}
}

// The ping settings modify a transport inside client-go, so an update of client-go could silently drop them.
func TestPingsReachTheTransport(t *testing.T) {
	config := &rest.Config{Host: "https://192.0.2.1", BearerToken: "x", TLSClientConfig: rest.TLSClientConfig{Insecure: true}}
	core, discovery, err := newClients(config, "", defaultTiming(), newContacts(func([]netip.AddrPort) {}))
	if err != nil {
		t.Fatal(err)
	}
	if core.(*rest.RESTClient).Client != discovery.(*rest.RESTClient).Client {
		t.Error("there are two HTTP clients, which means two connections")
	}
	transport := innermost(core.(*rest.RESTClient).Client.Transport)
	if transport == nil || transport == http.DefaultTransport || transport.HTTP2 == nil {
		t.Fatalf("transport %v", transport)
	}
	if h := transport.HTTP2; h.SendPingTimeout != 10*time.Second || h.PingTimeout != 35*time.Second {
		t.Errorf("pings %+v", h)
	}
	if config.Dial != nil || config.WrapTransport != nil {
		t.Error("the caller's configuration was changed")
	}
}

// The client notices a dead machine even while a ping is in flight, when TCP sends no keepalive probes.
func TestUnacknowledgedPacketsEndTheConnection(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	config := &rest.Config{Host: server.URL}
	detectDeadConnections(config, defaultTiming(), newContacts(func([]netip.AddrPort) {}))
	conn, err := config.Dial(t.Context(), "tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var limit int
	var got error
	if err := raw.Control(func(fd uintptr) { limit, got = syscall.GetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout) }); err != nil || got != nil {
		t.Fatal(err, got)
	}
	if limit != 20_000 {
		t.Errorf("packets may stay unacknowledged for %d ms", limit)
	}
}

func TestRedirectKlog(t *testing.T) {
	messages := []string{"hello", "details", "too much", "trouble"}
	klogEntries.TakeAll() // left by an earlier run of this test
	klog.InfoS(messages[0], "kind", "Service")
	klog.Background().V(1).Info(messages[1])
	klog.Background().V(4).Info(messages[2])
	klog.ErrorS(os.ErrNotExist, messages[3])
	var got []string
	for _, e := range klogEntries.All() {
		if slices.Contains(messages, e.Message) { // goroutines of earlier tests may still write to the log
			got = append(got, e.Level.String()+" "+e.LoggerName+" "+e.Message)
		}
	}
	want := "info client-go hello|debug client-go details|error client-go trouble"
	if s := strings.Join(got, "|"); s != want {
		t.Errorf("got %s", s)
	}
}
