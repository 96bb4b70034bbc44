package controlplane

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/upstream"
)

// TestStartedAhead checks that a control plane started ahead serves one test in that test's network
// namespace, and that its API server can stop and return.
func TestStartedAhead(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to create a network namespace")
	}
	if root, err := upstream.Root(); err != nil {
		t.Fatal(err)
	} else if _, err := upstream.Path(root, upstream.KubeAPIServer); err != nil && os.Getenv(RequireVariable) != "1" {
		t.Skipf("SKIPPED, nothing was tested: %v", err)
	}
	name := fmt.Sprintf("kube-ipvs-ahead-%d", os.Getpid())
	ip(t, "netns", "add", name)
	t.Cleanup(func() { ip(t, "netns", "delete", name) })
	ip(t, "-n", name, "link", "set", "lo", "up")
	ip(t, "-n", name, "address", "add", AheadAddress.String()+"/32", "dev", "lo")
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	dir := t.TempDir()
	go func() { ended <- RunAhead(ctx, dir) }()
	t.Setenv(AheadVariable, dir)

	cp := Start(t, Config{NetNS: name, BindAddress: AheadAddress})
	if len(cp.PIDs()) != 0 || cp.Dir() != dir {
		t.Fatalf("processes %v, directory %s: a newly started control plane", cp.PIDs(), cp.Dir())
	}
	services := client(t, cp).CoreV1().Services("default")
	if _, err := services.Get(t.Context(), "kubernetes", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	cp.StopAPIServer()
	if _, err := services.List(t.Context(), metav1.ListOptions{}); err == nil {
		t.Error("a stopped API server answers")
	}
	if err := cp.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := services.List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
	if again, err := (Config{NetNS: name, BindAddress: AheadAddress}).withDefaults(); err != nil {
		t.Error(err)
	} else if second, err := again.takeAhead(t.Context()); second != nil || err != nil {
		t.Errorf("taken twice: %v, %v", second, err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestWhatAControlPlaneAheadSuits(t *testing.T) {
	plain := Config{NetNS: "test", BindAddress: AheadAddress, Port: 6443}
	with := func(change func(*Config)) Config {
		c := plain
		change(&c)
		return c
	}
	for name, test := range map[string]struct {
		config Config
		suits  bool
	}{
		"the default":       {plain, true},
		"patience":          {with(func(c *Config) { c.ReadyTimeout = 1; c.Logf = t.Logf }), true},
		"no namespace":      {with(func(c *Config) { c.NetNS = "" }), false},
		"another address":   {with(func(c *Config) { c.BindAddress = netip.IPv6Loopback() }), false},
		"other ranges":      {with(func(c *Config) { c.ServiceCIDRs = []string{"10.97.0.0/24"} }), false},
		"written endpoints": {with(func(c *Config) { c.KubernetesEndpoints = true }), false},
		"a feature gate":    {with(func(c *Config) { c.FeatureGates = map[string]bool{"A": true} }), false},
		"a flag":            {with(func(c *Config) { c.APIServerArgs = []string{"--v=1"} }), false},
		"another directory": {with(func(c *Config) { c.Dir = "/somewhere" }), false},
	} {
		config, err := test.config.withDefaults()
		if err != nil {
			t.Fatal(err)
		}
		if config.suitsAhead() != test.suits {
			t.Errorf("%s: suits %t", name, !test.suits)
		}
	}
}
