package iptables

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// proxyOurs contains the agent's chains that have the same names as kube-proxy's.
var proxyOurs = map[kernel.ChainID]bool{
	{Table: "nat", Chain: "KUBE-SERVICES"}: true, {Table: "nat", Chain: "KUBE-POSTROUTING"}: true, {Table: "nat", Chain: "KUBE-MARK-MASQ"}: true,
	{Table: "filter", Chain: "KUBE-PROXY-FIREWALL"}: true, {Table: "filter", Chain: "KUBE-FORWARD"}: true,
}

func (l leftovers) String() string {
	var lines []string
	for _, r := range l.rules {
		lines = append(lines, r.String())
	}
	for _, id := range l.chains {
		lines = append(lines, id.String())
	}
	return strings.Join(lines, "\n")
}

// inIPTablesMode contains what kube-proxy leaves behind in iptables mode, mixed with rules of the kubelet, Docker and a
// CNI plug-in.
const inIPTablesMode = `*mangle
:PREROUTING ACCEPT [0:0]
:KUBE-IPTABLES-HINT - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
:KUBE-PROXY-CANARY - [0:0]
COMMIT
*filter
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:KUBE-EXTERNAL-SERVICES - [0:0]
:KUBE-FIREWALL - [0:0]
:KUBE-FORWARD - [0:0]
:KUBE-PROXY-FIREWALL - [0:0]
-A INPUT -j KUBE-FIREWALL
-A INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
-A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-A FORWARD -j DOCKER-USER
-A KUBE-FIREWALL ! -s 127.0.0.0/8 -d 127.0.0.0/8 -m comment --comment "block incoming localnet connections" -j DROP
-A KUBE-FORWARD -m conntrack --ctstate INVALID -j DROP
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:CNI-HOSTPORT-DNAT - [0:0]
:KUBE-MARK-MASQ - [0:0]
:KUBE-POSTROUTING - [0:0]
:KUBE-SEP-TT3IW56CI4FUGR3Q - [0:0]
:KUBE-SERVICES - [0:0]
:KUBE-SVC-NPX46M4PTMTKRN6Y - [0:0]
-A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
-A KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN
-A KUBE-SEP-TT3IW56CI4FUGR3Q -s 10.244.1.5/32 -j KUBE-MARK-MASQ
-A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -j KUBE-SVC-NPX46M4PTMTKRN6Y
-A KUBE-SVC-NPX46M4PTMTKRN6Y -j KUBE-SEP-TT3IW56CI4FUGR3Q
COMMIT
`

func parseAll(t *testing.T, text string) saved {
	t.Helper()
	s, err := parseSave(text, leftoverTables)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestLeftoversOfIPTablesMode(t *testing.T) {
	l := parseAll(t, inIPTablesMode).leftovers(proxyOurs)
	const want = `-t filter -A INPUT -m conntrack --ctstate NEW -m comment --comment "kubernetes externally-visible service portals" -j KUBE-EXTERNAL-SERVICES
-t filter -A FORWARD -m comment --comment "kubernetes forwarding rules" -j KUBE-FORWARD
-t nat -A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-t nat -A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
filter KUBE-EXTERNAL-SERVICES
filter KUBE-FORWARD
filter KUBE-PROXY-FIREWALL
mangle KUBE-PROXY-CANARY
nat KUBE-POSTROUTING
nat KUBE-SERVICES
nat KUBE-SVC-NPX46M4PTMTKRN6Y
nat KUBE-SEP-TT3IW56CI4FUGR3Q
nat KUBE-MARK-MASQ`
	if got := l.String(); got != want || len(l.kept) > 0 {
		t.Errorf("%s\nkept: %q", got, l.kept)
	}
}

func TestLeftoversBesideTheAgent(t *testing.T) {
	text := strings.NewReplacer(
		"-A KUBE-SERVICES -d 10.96.0.1/32 -p tcp -j KUBE-SVC-NPX46M4PTMTKRN6Y",
		`-A KUBE-SERVICES -m comment --comment "kube-ipvs:aaaaaaaaaa a ClusterIP" -j KUBE-IPVS-CLUSTER-IP`,
		"-A KUBE-POSTROUTING -m mark", `-A KUBE-POSTROUTING -m comment --comment "kube-ipvs:bbbbbbbbbb not marked" -m mark`,
		"-A KUBE-MARK-MASQ -j", `-A KUBE-MARK-MASQ -m comment --comment "kube-ipvs:cccccccccc mark" -j`,
		"-A KUBE-FORWARD -m conntrack", `-A KUBE-FORWARD -m comment --comment "kube-ipvs:dddddddddd replies" -m conntrack`,
	).Replace(inIPTablesMode)
	text = strings.Replace(text, "-A INPUT -j KUBE-FIREWALL\n", "-A INPUT -j KUBE-FIREWALL\n-A INPUT -m comment --comment \"kube-ipvs:eeeeeeeeee Services\" -j KUBE-FORWARD\n", 1)
	got := parseAll(t, text).leftovers(proxyOurs).String()
	for _, stays := range []string{"filter KUBE-FORWARD", "nat KUBE-SERVICES\n", "nat KUBE-MARK-MASQ", "nat KUBE-POSTROUTING\n", "kube-ipvs:", "KUBE-FIREWALL"} {
		if strings.Contains(got+"\n", stays) {
			t.Errorf("%s would go:\n%s", stays, got)
		}
	}
	for _, goes := range []string{"service portals\" -j KUBE-SERVICES", "postrouting rules\" -j KUBE-POSTROUTING", "nat KUBE-SVC-", "nat KUBE-SEP-", "filter KUBE-EXTERNAL"} {
		if !strings.Contains(got, goes) {
			t.Errorf("%s stays:\n%s", goes, got)
		}
	}
	alone := parseAll(t, "*filter\n:KUBE-PROXY-FIREWALL - [0:0]\n:INPUT ACCEPT [0:0]\n-A INPUT -m comment --comment \"kube-ipvs:eeeeeeeeee x\" -j X\nCOMMIT\n")
	if got := alone.leftovers(proxyOurs).String(); got != "" {
		t.Errorf("the agent's empty chain would be deleted: %s", got)
	}
}

func TestLeftoversInUse(t *testing.T) {
	for _, option := range []string{"-j", "-g"} {
		t.Run(option, func(t *testing.T) { leftoverInUse(t, option) })
	}
}

func leftoverInUse(t *testing.T, option string) {
	t.Helper()
	text := strings.Replace(inIPTablesMode, "-A KUBE-MARK-MASQ",
		"-A CNI-HOSTPORT-DNAT -p tcp "+option+" KUBE-MARK-MASQ\n-A PREROUTING -m set --match-set KUBE-CLUSTER-IP dst,dst -j ACCEPT\n-A KUBE-MARK-MASQ", 1)
	l := parseAll(t, text).leftovers(proxyOurs)
	if got := l.String(); strings.Contains(got, "KUBE-MARK-MASQ") || strings.Contains(got, "KUBE-POSTROUTING") || !strings.Contains(got, "nat KUBE-SERVICES") {
		t.Errorf("left:\n%s", got)
	}
	want := []string{"chain nat KUBE-MARK-MASQ stays; another program's rule uses it: -t nat -A CNI-HOSTPORT-DNAT -p tcp " + option + " KUBE-MARK-MASQ"}
	if !slices.Equal(l.kept, want) {
		t.Errorf("kept: %q", l.kept)
	}
	if rule := l.sets["KUBE-CLUSTER-IP"]; len(l.sets) != 1 || !strings.Contains(rule, "PREROUTING") {
		t.Errorf("sets in use: %q", l.sets)
	}
}

func TestRemovalOfLeftovers(t *testing.T) {
	l := parseAll(t, inIPTablesMode).leftovers(proxyOurs)
	chain := func(name string) kernel.Leftover {
		return kernel.Leftover{Place: "nft", Family: inet.IPv4, ChainID: kernel.ChainID{Table: "nat", Chain: name}}
	}
	jump := chain("PREROUTING")
	jump.Spec = `-m comment --comment "kubernetes service portals" -j KUBE-SERVICES`
	gone := chain("PREROUTING")
	gone.Spec = "-j SOMEWHERE"
	got := l.removal("nat", []kernel.Leftover{jump, jump, gone, chain("KUBE-SERVICES"), chain("KUBE-SVC-NPX46M4PTMTKRN6Y"), chain("KUBE-SVL-GONE")})
	const want = `*nat
:KUBE-SERVICES - [0:0]
:KUBE-SVC-NPX46M4PTMTKRN6Y - [0:0]
-D PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-SERVICES
-X KUBE-SERVICES
-X KUBE-SVC-NPX46M4PTMTKRN6Y
COMMIT
`
	if got != want {
		t.Errorf("restore gets:\n%s", got)
	}
	if got := l.removal("nat", []kernel.Leftover{gone}); got != "" {
		t.Errorf("restore gets:\n%s", got)
	}
}

func TestHiddenLeftovers(t *testing.T) {
	for tables, hidden := range map[string]bool{"nat filter\n": true, "filter\n": false} {
		fakeCommands(t, nil)
		listTables(t, tables)
		_, _, err := New(Config{Variant: Legacy}).FindLeftovers(context.Background())
		if (err != nil) != hidden || hidden && !strings.Contains(err.Error(), "iptables-legacy") {
			t.Errorf("tables %q: %v", tables, err)
		}
	}
}
