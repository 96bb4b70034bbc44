package kerneltest

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// ourMark separates one of our rules from its reason.
const ourMark = " # "

// Dump prints the kernel as the sorted commands that would create it, sysctls first and addresses last. It omits sysctls and timeouts that
// have the same value as in a new kernel. A # precedes the reason for one of our rules, and the connection counts of a destination.
func (f *Fake) Dump() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var b strings.Builder
	for _, section := range [][]string{
		f.dumpSysctls(), f.dumpDevice(), f.dumpSets(), f.dumpRules(), f.dumpTimeouts(), f.dumpServers(), f.dumpMembers(),
		f.dumpAddresses(),
	} {
		for _, l := range section {
			b.WriteString(l + "\n")
		}
	}
	return b.String()
}

func create(o kernel.Object) string { return kernel.Op{Verb: kernel.Create, Object: o}.String() }

func (f *Fake) dumpSysctls() []string {
	var out []string
	fresh := freshSysctls()
	for _, name := range slices.Sorted(maps.Keys(f.sysctls)) {
		if value := f.sysctls[name]; value != fresh[name] {
			setting := kernel.SysctlSetting{Name: name, Value: value}
			out = append(out, kernel.Op{Verb: kernel.Ensure, Object: setting}.String())
		}
	}
	return out
}

func (f *Fake) dumpDevice() []string {
	if !f.device {
		return nil
	}
	return []string{create(kernel.DummyDevice{})}
}

func (f *Fake) dumpSets() []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(f.sets)) {
		out = append(out, create(f.sets[name].Set))
	}
	return out
}

// A rule may jump to any chain, so all chains of a family are printed before the first rule.
func (f *Fake) dumpRules() []string {
	var out []string
	for _, family := range inet.Families {
		t := f.tables[family]
		ids := slices.SortedFunc(maps.Keys(t), compareChains)
		for _, id := range ids {
			if !isBuiltin(id) {
				out = append(out, fmt.Sprintf("%s -t %s -N %s", iptables[family], id.Table, id.Chain))
			}
		}
		for _, id := range ids {
			for _, l := range t[id] {
				out = append(out, fmt.Sprintf("%s -t %s -A %s %s", iptables[family], id.Table, id.Chain, l))
			}
		}
	}
	return out
}

var iptables = map[inet.Family]string{inet.IPv4: "iptables", inet.IPv6: "ip6tables"}

// Packets traverse the tables in this order.
func compareChains(a, b kernel.ChainID) int {
	order := []string{"raw", "mangle", "nat", "filter", "security"}
	return cmp.Or(
		cmp.Compare(slices.Index(order, a.Table), slices.Index(order, b.Table)),
		cmp.Compare(a.Chain, b.Chain),
	)
}

func (f *Fake) dumpServers() []string {
	var out []string
	for _, key := range slices.SortedFunc(maps.Keys(f.servers), kernel.ServerKey.Compare) {
		s := f.servers[key]
		out = append(out, create(s.Server))
		for _, d := range s.Destinations {
			out = append(out, dumpDestination(key, d))
		}
	}
	return out
}

// ipvsadm has no flag for the method Local, so Dump invents --local.
var forwardings = map[kernel.Forwarding]string{
	kernel.ForwardMasq: "-m", kernel.ForwardLocal: "--local", kernel.ForwardTunnel: "-i", kernel.ForwardRoute: "-g",
}

func dumpDestination(key kernel.ServerKey, d kernel.ObservedDestination) string {
	text := create(kernel.ServerDestination{Server: key, Destination: d.Destination})
	text = strings.Replace(text, " -m ", " "+forwardings[d.Forwarding]+" ", 1)
	if d.Stats != (kernel.DestinationStats{}) {
		text += fmt.Sprintf(ourMark+"active %d inactive %d persistent %d", d.Stats.Active, d.Stats.Inactive,
			d.Stats.Persistent)
	}
	return text
}

func (f *Fake) dumpMembers() []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(f.sets)) {
		for _, e := range slices.SortedFunc(maps.Keys(f.sets[name].members), kernel.Element.Compare) {
			out = append(out, create(kernel.Member{Set: name, Element: e}))
		}
	}
	return out
}

func (f *Fake) dumpAddresses() []string {
	var out []string
	for _, a := range slices.SortedFunc(maps.Keys(f.addresses), netip.Addr.Compare) {
		for _, b := range []kernel.Binding{kernel.OnDevice, kernel.Routed} {
			if f.addresses[a].Includes(b) {
				out = append(out, create(kernel.BoundAddress{Addr: a, Binding: b}))
			}
		}
	}
	return out
}

// quoteAll quotes the words that parseDump would otherwise split or misread.
func quoteAll(words []string) []string {
	out := make([]string, len(words))
	for i, w := range words {
		if w == "" || strings.ContainsAny(w, " \t\"#\\") {
			w = strconv.Quote(w)
		}
		out[i] = w
	}
	return out
}
