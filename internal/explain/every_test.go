package explain_test

import (
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/iptables"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// everyKind returns Services of both families. Together, they add entries to every ipset that a rule uses.
func everyKind() []*model.Service {
	var all []*model.Service
	for family, at := range map[string][3]string{
		"4": {"10.96.1.%d", "10.244.1.%d", "203.0.113.%d"}, "6": {"fd00:10:96::1:%d", "fd00:10:244::1:%d", "2001:db8:5::%d"},
	} {
		kinds := map[string]func(*model.Service){
			"plain":  func(s *model.Service) { s.Ports[0].NodePort = 30081 },
			"ranged": func(s *model.Service) { s.SourceRanges = prefixes("198.51.100.0/24", "2001:db8:7::/64") },
			"far":    func(s *model.Service) { s.ExternalLocal = true; toOtherNode(s) },
			"inside": func(s *model.Service) { s.InternalLocal = true; toOtherNode(s) },
			"empty":  func(s *model.Service) { s.Ports[0].NodePort = 30082; s.Slices[0].Endpoints = nil },
			"sticky": func(s *model.Service) { s.AffinityTimeout = time.Hour },
		}
		for i, name := range slices.Sorted(maps.Keys(kinds)) {
			n := 2*i + 1
			s := compiletest.Service(name+family, fmt.Sprintf(at[0], n), fmt.Sprintf(at[1], n), fmt.Sprintf(at[1], n+1))
			s.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr(fmt.Sprintf(at[2], n))}
			if family == "6" {
				s.Ports[0].NodePort += 100
			}
			if kinds[name](s); family == "6" && s.Ports[0].NodePort > 0 {
				s.Ports[0].NodePort += 100
			}
			all = append(all, s)
		}
	}
	return all
}

// damage removes one object. The explanation must then contain want.
type damage struct {
	object string
	family inet.Family // 0 for both
	do     func(*explain.Kernel)
	want   string
}

// everyObject lists every owned object in the kernel.
func everyObject(k *explain.Kernel, base view.Base) []damage {
	all := []damage{{"device", 0, func(k *explain.Kernel) { k.Device = false; clear(k.Addresses) }, "the device kube-ipvs0 does not exist"}}
	add := func(object string, family inet.Family, want string, do func(*explain.Kernel)) {
		all = append(all, damage{object, family, do, want})
	}
	for addr := range k.Addresses {
		add("address "+addr.String(), inet.FamilyOf(addr), "the address "+addr.String()+" is not bound", func(k *explain.Kernel) { delete(k.Addresses, addr) })
	}
	for _, s := range base.Sysctls {
		name := s.Name
		add("sysctl "+name, 0, "the sysctl "+name, func(k *explain.Kernel) { k.Sysctls[name] = "no" })
	}
	for name, set := range k.Sets {
		add("set "+name, set.Family, "the set "+name+" is missing", func(k *explain.Kernel) { delete(k.Sets, name); delete(k.Members, name) })
		for element := range k.Members[name] {
			if element.Addr.IsLoopback() {
				continue // marks the ledger itself, not a virtual server
			}
			want := "the set " + name + " lacks " + element.String()
			if strings.HasSuffix(name, "LEDGER") {
				want = "the owner record of"
			}
			add(name+" "+element.String(), set.Family, want, func(k *explain.Kernel) { delete(k.Members[name], element) })
		}
	}
	for key, server := range k.Servers {
		add("server "+key.String(), key.Family(), "the virtual server "+key.String()+" is missing", func(k *explain.Kernel) { delete(k.Servers, key) })
		for i, d := range server.Destinations {
			add(fmt.Sprintf("destination %s of %s", d.Addr, key), key.Family(), fmt.Sprintf("the destination %s of %s is missing", d.Addr, key), func(k *explain.Kernel) {
				s := k.Servers[key]
				s.Destinations = slices.Delete(slices.Clone(s.Destinations), i, i+1)
				k.Servers[key] = s
			})
			add(fmt.Sprintf("weight of %s of %s", d.Addr, key), key.Family(), fmt.Sprintf("the destination %s of %s has weight 0", d.Addr, key), func(k *explain.Kernel) {
				k.Servers[key].Destinations[i].Weight = 0
			})
		}
	}
	for family, rules := range k.State.Rules {
		addRules(family, rules.Chains, add)
		addRules(family, rules.Jumps, add)
	}
	return all
}

// addRules adds one damage for each rule of a chain, and one that removes all its rules.
func addRules(family inet.Family, places map[kernel.ChainID][]string, add func(string, inet.Family, string, func(*explain.Kernel))) {
	for id, tags := range places {
		if len(tags) == 0 {
			continue // an empty chain that no rule jumps to
		}
		want := "missing in " + id.String()
		add(fmt.Sprintf("all rules in %s of %s", id, family), family, want, func(k *explain.Kernel) {
			delete(k.State.Rules[family].Chains, id)
			delete(k.State.Rules[family].Jumps, id)
		})
		for _, tag := range tags {
			without := func(places map[kernel.ChainID][]string) {
				places[id] = slices.DeleteFunc(slices.Clone(places[id]), func(t string) bool { return t == tag })
			}
			add(fmt.Sprintf("rule %s in %s of %s", tag, id, family), family, want, func(k *explain.Kernel) {
				without(k.State.Rules[family].Chains)
				without(k.State.Rules[family].Jumps)
			})
		}
	}
}

// TestEveryObjectBroken removes each owned object. If a packet needs the object, the explanation names the object and
// does not report success.
func TestEveryObjectBroken(t *testing.T) {
	w := newWorld(t, everyKind()...)
	questions := w.questions()
	met := map[string]bool{}
	for _, d := range everyObject(copied(w.kernel), w.view.Base) {
		k := copied(w.kernel)
		d.do(k)
		if !slices.ContainsFunc(questions, func(q explain.Question) bool {
			if d.family != 0 && q.To.Family() != d.family {
				return false
			}
			e := explain.Explain(k, w.view, w.view.Base, q)
			return e.Verdict != explain.Passes && says(e, d.want)
		}) {
			t.Errorf("without %s: no explanation contains %q", d.object, d.want)
		}
		met[strings.Fields(d.object)[0]] = true
	}
	for _, kind := range []string{
		"device", "address", "sysctl", "set", "server", "destination", "weight", "rule",
		"KIPVS-4-CLUSTER-IP", "KIPVS-6-EXTERNAL", "KIPVS-4-MASQUERADED", "KIPVS-6-VIP", "KIPVS-4-NO-LOCAL", "KIPVS-6-INSIDE-ONLY", "KIPVS-4-REFUSED",
		"KIPVS-6-FIREWALLED", "KIPVS-4-ALLOWED", "KIPVS-6-HAIRPIN", "KIPVS-4-LEDGER", "KIPVS-6-LEDGER",
	} {
		if !met[kind] {
			t.Errorf("the kernel has no %s to damage", kind)
		}
	}
}

func (w *world) questions() (questions []explain.Question) {
	for _, s := range w.view.Services {
		for _, f := range s.Frontends {
			from := outside
			if f.Address.Addr().Is6() {
				from = "2001:db8:7::7"
			}
			questions = append(questions, question(f.Address.String()+"/"+f.Protocol, from))
		}
	}
	return questions
}

// TestParsedRules: rules of another agent version, which are parsed from text, give the same explanations.
func TestParsedRules(t *testing.T) {
	w := newWorld(t, everyKind()...)
	parsed := copied(w.kernel)
	parsed.Rules = map[inet.Family]kernel.RuleListing{}
	for family, l := range w.kernel.Rules {
		parsed.Rules[family] = kernel.RuleListing{Policies: l.Policies, Rules: map[kernel.ChainID][]kernel.SavedRule{}}
		for id, rules := range l.Rules {
			for _, r := range rules {
				parsed.Rules[family].Rules[id] = append(parsed.Rules[family].Rules[id], iptables.ParseRule(id, r.Spec))
			}
		}
	}
	for _, q := range w.questions() {
		for _, from := range []netip.Addr{q.From, {}} {
			q.From = from
			want, have := explain.Explain(w.kernel, w.view, w.view.Base, q), explain.Explain(parsed, w.view, w.view.Base, q)
			if steps(have) != steps(want) {
				t.Errorf("%s from %s: want\n%s, have\n%s", q.To, q.From, steps(want), steps(have))
			}
		}
	}
}

// TestTextsWithoutIPVS: if nftables balances, no explanation mentions IPVS, ipset or iptables, whichever object is
// broken.
func TestTextsWithoutIPVS(t *testing.T) {
	cfg := compiletest.Config()
	cfg.Mode = kernel.NFTablesOnly
	w := newWorldWith(t, cfg, everyKind()...)
	questions := append(w.questions(), question("127.0.0.1:30080", node), question("8.8.8.8:53/udp", outside))
	if !slices.ContainsFunc(questions, func(q explain.Question) bool {
		return explain.Explain(w.kernel, w.view, w.view.Base, q).Verdict == explain.Passes
	}) {
		t.Fatal("nothing works before it is broken: ", w.view.Agent.Error)
	}
	for i := range questions {
		questions[i].FromPort = uint16(i % 2 * 40_000)
	}
	whole := damage{object: "nothing", do: func(*explain.Kernel) {}}
	for _, d := range append(everyObject(copied(w.kernel), w.view.Base), whole) {
		k := copied(w.kernel)
		d.do(k)
		for _, q := range questions {
			e := explain.Explain(k, w.view, w.view.Base, q)
			text := strings.NewReplacer("kube-ipvs", "", "KUBE-IPVS", "", "KIPVS", "").Replace(steps(e))
			if at := regexp.MustCompile(`(?i)ipvs|ipset|iptables`).FindStringIndex(text); at != nil {
				t.Fatalf("without %s, the explanation of %s contains ...%s...", d.object, q.To, text[max(0, at[0]-60):min(len(text), at[1]+60)])
			}
		}
	}
}

func copied(k *explain.Kernel) *explain.Kernel {
	c, state := *k, *k.State
	c.State = &state
	state.Addresses, state.Sysctls, state.Sets, state.Servers = maps.Clone(state.Addresses), maps.Clone(state.Sysctls), maps.Clone(state.Sets), maps.Clone(state.Servers)
	state.Members = maps.Clone(state.Members)
	for name, members := range state.Members {
		state.Members[name] = maps.Clone(members)
	}
	for key, server := range state.Servers {
		server.Destinations = slices.Clone(server.Destinations)
		state.Servers[key] = server
	}
	state.Rules = maps.Clone(state.Rules)
	for family, rules := range state.Rules {
		rules.Chains, rules.Jumps = maps.Clone(rules.Chains), maps.Clone(rules.Jumps)
		state.Rules[family] = rules
	}
	return &c
}
