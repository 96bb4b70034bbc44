package explain_test

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/foreign"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/ipset"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/iptables"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// load installs a program's rules in this network namespace, and reads them as explain does.
func (w *world) load(t *testing.T, program string) {
	t.Helper()
	for _, command := range []struct{ ending, line string }{
		{"ipset", "ipset restore"}, {"nft", "nft -f -"}, {"iptables", "iptables-nft-restore"}, {"ip6tables", "ip6tables-nft-restore"},
	} {
		file, err := os.Open(filepath.Join("testdata", "firewalls", program+"."+command.ending))
		if err != nil {
			continue // the program has no such rules
		}
		words := strings.Fields(command.line)
		restore := exec.Command(words[0], words[1:]...)
		restore.Stdin = file
		if out, err := restore.CombinedOutput(); err != nil {
			t.Fatalf("%s of %s: %v\n%s", command.line, program, err, out)
		}
		_ = file.Close()
	}
	tables := iptables.New(iptables.Config{Variant: iptables.NFT, Families: inet.Families})
	theirs, err := tables.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for family, l := range theirs {
		maps.Copy(w.kernel.Rules[family].Policies, l.Policies)
		for id, rules := range l.Rules {
			w.kernel.Rules[family].Rules[id] = append(w.kernel.Rules[family].Rules[id], rules...)
		}
	}
	if w.kernel.Chains, err = tables.BaseChains(t.Context()); err != nil {
		t.Fatal(err)
	}
	if w.kernel.NFTables, err = foreign.Read(t.Context(), w.kernel.Chains); err != nil {
		t.Fatal(err)
	}
	if w.kernel.OtherSets, err = ipset.ReadOthers(t.Context(), "KIPVS-"); err != nil {
		t.Fatal(err)
	}
}

func (w *world) ways(pods string) {
	w.kernel.Routes = map[netip.Addr]kernel.Route{}
	for _, a := range []string{outside, outside6, "2001:db8:7::7"} {
		w.kernel.Routes[netip.MustParseAddr(a)] = kernel.Route{Interface: "eth0"}
	}
	for _, s := range w.kernel.Servers {
		for _, d := range s.Destinations {
			w.kernel.Routes[d.Addr.Addr()] = kernel.Route{Interface: pods}
		}
	}
	for _, a := range []string{somePod, somePod6} {
		w.kernel.Routes[netip.MustParseAddr(a)] = kernel.Route{Interface: pods}
	}
}

const somePod, somePod6, node6 = "10.244.3.3", "fd00:10:244::3:3", "fd00:2::1"

// TestFirewalls uses the rules that firewalls and network plugins install. Some rules come from running programs
// (Debian 12's ufw 0.36.2, firewalld 1.3.3 with both backends and docker.io 20.10, each with a few rules that an
// operator might add). The others follow the programs' source code (see the head of each file). At most one path in ten
// is unclear, and explain names the rule that stops a path.
func TestFirewalls(t *testing.T) {
	for _, c := range []struct {
		program string
		pods    string
		// stops maps each blocked path to the rule or policy that stops it.
		stops map[string]string
	}{
		{"ufw", "cni0", map[string]string{
			"outside to 10.96.0.1:80": "-t filter -P INPUT DROP", "outside to 203.0.113.1:80": "-t filter -P INPUT DROP",
			"outside to [fd00:10:96::1]:80": "-t filter -P INPUT DROP", "pod to [fd00:10:96::1]:80": "-t filter -P INPUT DROP",
		}},
		{"firewalld", "cni0", map[string]string{
			"outside to 10.96.0.1:80": "inet firewalld filter_IN_public", "outside to 203.0.113.1:80": "inet firewalld filter_IN_public",
			"outside to [fd00:10:96::1]:80": "inet firewalld filter_IN_public", "pod to [fd00:10:96::1]:80": "inet firewalld filter_IN_public",
		}},
		{"firewalld-iptables", "cni0", map[string]string{
			"outside to 10.96.0.1:80": "-t filter -A IN_public -j REJECT", "outside to 203.0.113.1:80": "-t filter -A IN_public -j REJECT",
			"outside to [fd00:10:96::1]:80": "-t filter -A IN_public -j REJECT", "pod to [fd00:10:96::1]:80": "-t filter -A IN_public -j REJECT",
		}},
		{"docker", "cni0", nil},
		{"calico", "cali1", nil},
		{"calico-nftables", "cali1", nil},
		{"calico", "cali2", map[string]string{
			"pod to 10.96.0.1:80": "Unknown", "pod to 203.0.113.1:80": "Unknown", "pod to 192.0.2.1:30080": "Unknown",
			"outside to 10.96.0.1:80": "Unknown interface", "outside to 203.0.113.1:80": "Unknown interface", "outside to 192.0.2.1:30080": "Unknown interface",
			"node to 10.96.0.1:80": "Unknown interface", "node to 203.0.113.1:80": "Unknown interface", "node to 192.0.2.1:30080": "Unknown interface",
		}},
		{"cilium", "lxc1", nil},
	} {
		t.Run(c.program+" with "+c.pods, func(t *testing.T) {
			labtest.NetNSNoIPVS(t)
			w := newWorld(t, everyPath()...)
			w.load(t, c.program)
			w.ways(c.pods)
			paths, unclear, stopped := 0, 0, map[string]bool{}
			for name, e := range w.paths() {
				paths++
				rule, stops := c.stops[name]
				stopped[name] = stops
				switch {
				case e.Verdict == explain.Unclear:
					unclear++
					t.Logf("%s is unclear: %v", name, e.Reasons)
				case stops != (e.Verdict == explain.Stops) || stops && !says(e, rule):
					t.Errorf("%s: %s, want it to stop at %q:\n%s", name, e.Verdict, rule, steps(e))
				case !stops && e.Verdict != explain.Passes:
					t.Errorf("%s:\n%s", name, steps(e))
				}
			}
			if unclear*10 > paths {
				t.Errorf("%d of %d paths are unclear", unclear, paths)
			}
			for name := range c.stops {
				if _, asked := stopped[name]; !asked {
					t.Errorf("there is no path %s", name)
				}
			}
			t.Logf("%d of %d paths are unclear", unclear, paths)
		})
	}
}

func (w *world) paths() map[string]explain.Explanation {
	all := map[string]explain.Explanation{}
	for _, s := range w.view.Services {
		for _, f := range s.Frontends {
			clients := map[string]string{"outside": outside, "pod": somePod, "node": node}
			if f.Address.Addr().Is6() {
				clients = map[string]string{"outside": outside6, "pod": somePod6, "node": node6}
			}
			for _, kind := range slices.Sorted(maps.Keys(clients)) {
				all[fmt.Sprintf("%s to %s", kind, f.Address)] = w.ask(f.Address.String()+"/"+f.Protocol, clients[kind])
			}
		}
	}
	return all
}

// everyPath returns Services of both families with each kind of frontend.
func everyPath() []*model.Service {
	six := compiletest.Service("web6", "fd00:10:96::1", "fd00:10:244::1", "fd00:10:244::2")
	return []*model.Service{web(), six}
}
