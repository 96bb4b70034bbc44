package agent_test

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/kerneltest"
)

// configurations contains changes to the tests' configuration. They do not change the IP families, because a machine
// that loses a family can no longer remove that family's objects.
var configurations = map[string]func(*compile.Config){
	"default":                    func(*compile.Config) {},
	"another cluster CIDR":       func(c *compile.Config) { c.Local.CIDRs = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")} },
	"no cluster CIDR":            func(c *compile.Config) { c.Local = compile.LocalDetector{} },
	"local by interface":         func(c *compile.Config) { c.Local = compile.LocalDetector{InterfacePrefix: "cali"} },
	"another scheduler":          func(c *compile.Config) { c.Scheduler = "mh" },
	"node ports nowhere":         func(c *compile.Config) { c.NodePorts.CIDRs = []netip.Prefix{netip.MustParsePrefix("198.18.0.0/15")} },
	"node ports at primary":      func(c *compile.Config) { c.NodePorts.Primary = true },
	"masquerade all":             func(c *compile.Config) { c.MasqueradeAll, c.MasqueradeBit = true, 3 },
	"accept Service traffic":     func(c *compile.Config) { c.AcceptServices = true },
	"some addresses excluded":    func(c *compile.Config) { c.Excluded = []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")} },
	"pods' packets masqueraded":  func(c *compile.Config) { c.Egress.Masquerade = true },
	"routes":                     func(c *compile.Config) { c.Binding = kernel.Routed },
	"strict ARP, other timeouts": func(c *compile.Config) { c.StrictARP, c.Timeouts.UDP = true, drainTimeout },
}

// After a restart with any configuration, the kernel's state does not depend on the earlier configuration. The
// exceptions are sysctls and timeouts, which agents do not reset. Virtual servers that both configurations want are
// never deleted.
func TestRestartWithAnyConfiguration(t *testing.T) {
	fresh, fromScratch := map[string]*kernel.State{}, map[string]string{}
	for name := range configurations {
		fresh[name], fromScratch[name] = runWith(t, "", name, nil)
	}
	for _, before := range slices.Sorted(maps.Keys(configurations)) {
		for _, after := range slices.Sorted(maps.Keys(configurations)) {
			_, have := runWith(t, before, after, func(w *world) {
				w.fake.OnOp(func(op kernel.Op, _ error) {
					s, is := op.Object.(kernel.Server)
					_, was := fresh[before].Servers[s.Key]
					_, stays := fresh[after].Servers[s.Key]
					if is && op.Verb == kernel.Delete && was && stays {
						t.Errorf("from %q to %q: %s", before, after, op)
					}
				})
			})
			if d := cmp.Diff(withoutSettings(fromScratch[after]), withoutSettings(have)); d != "" {
				t.Errorf("from %q to %q (-want +have):\n%s", before, after, d)
			}
		}
	}
}

func runWith(t *testing.T, before, after string, between func(*world)) (state *kernel.State, dump string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 0)
		w.calm()
		w.unwatched = true
		w.fake.OnOp(nil)
		w.services = all(web("10.244.0.1"), compiletest.Service("six", "fd00::1", "fd01::1"), remotely(), clusterDNS())
		config := w.config.Compile
		for _, name := range []string{before, after} {
			if name == "" {
				continue
			}
			w.config.Compile = config
			configurations[name](&w.config.Compile)
			w.start()
			w.audit()
			w.stop()
			if between != nil {
				between(w)
			}
		}
		state, dump = w.fake.State(), w.fake.Dump()
	})
	return state, dump
}

func withoutSettings(dump string) []string {
	return slices.DeleteFunc(lines(dump), func(line string) bool {
		return strings.Contains(line, "sysctl") || strings.Contains(line, "ipvsadm --set")
	})
}

func TestReloadIsNoDrift(t *testing.T) {
	for name, configure := range configurations {
		t.Run(name, func(t *testing.T) {
			calmBubble(t, func(w *world) {
				w.unwatched = true
				w.fake.OnOp(nil)
				reload := make(chan agent.Reload)
				w.config.Reload = reload
				config := w.config.Compile
				w.put(web("10.244.0.1"))
				w.start()
				w.audit()
				configure(&config)
				reload <- agent.Reload{Settings: agent.Settings{Compile: config.Settings, AuditInterval: auditInterval, DrainTimeout: drainTimeout}}
				w.takeReports()
				w.sleep(time.Second)
				w.audit()
				for _, r := range w.takeReports() {
					if r.Drift > 0 {
						t.Errorf("drift: %v", r.Drifted)
					}
				}
				w.damage(func(f *kerneltest.Fake) error { return f.FlushSet("KIPVS-4-VIP") })
				w.audit()
				if r := w.takeReports(); !slices.ContainsFunc(r, func(r agent.Report) bool { return r.Drift > 0 }) {
					t.Error("a flushed set is not drift")
				}
			})
		})
	}
}
