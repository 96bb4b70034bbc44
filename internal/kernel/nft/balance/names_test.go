package balance

import (
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

func TestPagesNameMapsAndChains(t *testing.T) {
	var names []string
	for _, family := range inet.Families {
		names = append(names, sharedMapNames[family]...)
		for _, c := range shared[family] {
			names = append(names, c.Name)
		}
	}
	ofFamily4 := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return ownChain(inet.IPv6, name) || ownMap(inet.IPv6, name) })
	key := kernel.ServerKey{Addr: netip.MustParseAddrPort("10.96.0.1:80"), Protocol: inet.TCP}
	withAffinity, pick := affinity{key: key}, picker{family: inet.IPv4, slots: 3}
	allPorts := pick
	allPorts.allPorts = true
	example := []string{kernel.ClientsMap(key), withAffinity.name(), withAffinity.recordName(), pick.name(), allPorts.name()}
	all := slices.Concat(names, example)

	name := regexp.MustCompile("`([a-z-]+[46](?:[.-][a-z0-9.-]+)?)`")
	var found []string
	for _, page := range []string{"data-planes.md", "glossary.md", "coexistence.md", "troubleshooting.md", "decisions/0011-balancing-without-ipvs.md"} {
		text, err := os.ReadFile(filepath.Join("../../../../docs", page))
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range name.FindAllStringSubmatch(string(text), -1) {
			found = append(found, m[1])
			if !slices.Contains(all, m[1]) {
				t.Errorf("%s: no map or chain is named %s", page, m[1])
			}
		}
	}
	for _, n := range slices.Concat(ofFamily4, example) {
		if !slices.Contains(found, n) {
			t.Errorf("docs/data-planes.md does not name %s", n)
		}
	}
}
