package kernel

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
)

// Leftover is one object that kube-proxy left behind: a chain with its rules, a rule in a built-in chain, an ipset, or an nftables table.
// Verb: Delete. Virtual servers and addresses on kube-ipvs0 are never leftovers: nothing distinguishes kube-proxy's objects from another
// program's.
type Leftover struct {
	// Place is an iptables variant ("nft" or "legacy"), OldSets, or RulesNFTables.
	Place  string
	Family inet.Family
	// ChainID is the chain. If Spec is not empty, the leftover is only this rule of the chain, as iptables-save
	// prints it.
	ChainID
	Spec string
	// Name is the name of an ipset.
	Name string
}

// Leftovers describes what kube-proxy left behind on a node.
type Leftovers struct {
	// Objects lists the objects in the order in which they can be deleted.
	Objects []Leftover
	// Kept describes the objects that stay because other programs use them.
	Kept []string
}

// ProxyTable is the name of kube-proxy's nftables tables, which are in the families ip and ip6.
const ProxyTable = "kube-proxy"

// NFTFamily returns the name of the family in nftables.
func NFTFamily(f inet.Family) string {
	if f == inet.IPv6 {
		return "ip6"
	}
	return "ip"
}

func (Leftover) kind() Kind { return KindRules }

func (l Leftover) String() string {
	switch {
	case l.Place == OldSets:
		return "ipset " + l.Name
	case l.Place == RulesNFTables:
		return fmt.Sprintf("nftables table %s %s", NFTFamily(l.Family), ProxyTable)
	case l.Spec != "":
		return fmt.Sprintf("%s-%s -t %s -A %s %s", Programs(l.Family), l.Place, l.Table, l.Chain, l.Spec)
	}
	return fmt.Sprintf("%s-%s -t %s -N %s", Programs(l.Family), l.Place, l.Table, l.Chain)
}

func (l Leftover) removal() string {
	switch {
	case l.Place == OldSets:
		return "ipset destroy " + l.Name
	case l.Place == RulesNFTables:
		return fmt.Sprintf("nft delete table %s %s", NFTFamily(l.Family), ProxyTable)
	case l.Spec != "":
		return fmt.Sprintf("%s-%s -t %s -D %s %s", Programs(l.Family), l.Place, l.Table, l.Chain, l.Spec)
	}
	return fmt.Sprintf("%s-%s -t %s -X %s", Programs(l.Family), l.Place, l.Table, l.Chain)
}

// proxyChains lists kube-proxy's chains in its iptables and ipvs modes. The kubelet's chains are not included.
var proxyChains = map[string][]string{
	"nat": {"KUBE-SERVICES", "KUBE-NODEPORTS", "KUBE-NODE-PORT", "KUBE-LOAD-BALANCER", "KUBE-MARK-MASQ", "KUBE-POSTROUTING", "KUBE-PROXY-CANARY"},
	"filter": {
		"KUBE-SERVICES", "KUBE-EXTERNAL-SERVICES", "KUBE-NODEPORTS", "KUBE-NODE-PORT", "KUBE-FORWARD", "KUBE-PROXY-FIREWALL",
		"KUBE-SOURCE-RANGES-FIREWALL", "KUBE-IPVS-FILTER", "KUBE-IPVS-OUT-FILTER", "KUBE-PROXY-CANARY",
	},
	"mangle": {"KUBE-PROXY-CANARY"},
}

// proxyHashed lists the prefixes of kube-proxy's per-Service and per-endpoint chains in the nat table. A hash follows.
var proxyHashed = []string{"KUBE-SVC-", "KUBE-SVL-", "KUBE-FW-", "KUBE-EXT-", "KUBE-SEP-", "KUBE-XLB-"}

// proxyHash is the length of the hash, in base 32.
const proxyHash = 16

// OfKubeProxy reports whether kube-proxy uses a chain with this name. The agent uses some of these names, too.
func (c ChainID) OfKubeProxy() bool {
	if slices.Contains(proxyChains[c.Table], c.Chain) {
		return true
	}
	return c.Table == "nat" && slices.ContainsFunc(proxyHashed, func(prefix string) bool {
		hash, found := strings.CutPrefix(c.Chain, prefix)
		return found && len(hash) == proxyHash && strings.Trim(hash, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") == ""
	})
}

// JumpOfKubeProxy returns the chain to which kube-proxy's rule in a built-in chain jumps. It recognizes the rule by its comment, because
// other programs may jump there, too.
func (r SavedRule) JumpOfKubeProxy() (to ChainID, ok bool) {
	jump, jumps := r.Rule.Verdict.(JumpTo)
	to = ChainID{Table: r.Table, Chain: string(jump)}
	its := strings.HasPrefix(r.Rule.Why, "kubernetes ") || strings.HasPrefix(r.Rule.Why, "kube-proxy ")
	return to, jumps && its && r.Tag == "" && to.OfKubeProxy()
}

// proxySets lists kube-proxy's ipsets in ipvs mode, without the prefix. In the names of IPv6 sets, "6-" follows the prefix.
var proxySets = []string{
	"LOOP-BACK", "CLUSTER-IP", "EXTERNAL-IP", "EXTERNAL-IP-LOCAL", "LOAD-BALANCER", "LOAD-BALANCER-LOCAL", "LOAD-BALANCER-FW",
	"LOAD-BALANCER-SOURCE-IP", "LOAD-BALANCER-SOURCE-CIDR", "NODE-PORT-TCP", "NODE-PORT-LOCAL-TCP", "NODE-PORT-UDP", "NODE-PORT-LOCAL-UDP",
	"NODE-PORT-SCTP-HASH", "NODE-PORT-LOCAL-SCTP-HASH", "HEALTH-CHECK-NODE-PORT", "IPVS-IPS",
}

// ProxySets is the prefix of the names of kube-proxy's ipsets.
const ProxySets = "KUBE-"

// maxSetName is the maximum length of an ipset name. kube-proxy truncates longer names.
const maxSetName = 31

// SetOfKubeProxy reports whether kube-proxy uses an ipset with this name.
func SetOfKubeProxy(name string) bool {
	return slices.ContainsFunc(proxySets, func(set string) bool {
		v6 := ProxySets + "6-" + set
		return name == ProxySets+set || name == v6[:min(len(v6), maxSetName)]
	})
}
