package preflight

import (
	"context"
	"errors"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/iptables"
)

// Needs are the kernel features that the configuration uses.
type Needs struct {
	Schedulers []string
	Families   []inet.Family
	Sysctls    []kernel.SysctlSetting
	// DataPlane is the setting that says what balances connections.
	DataPlane string
	// Rules is the setting that says where sets and rules are kept: kernel.RulesAuto or another. Sets and Rulesets are what nftables would
	// hold.
	Rules    string
	Sets     []kernel.Set
	Rulesets []kernel.Ruleset
	// AcceptServices: rules have to overrule the host's firewall.
	AcceptServices bool
}

// Finding is one problem.
type Finding struct {
	// Subject is the affected kernel module, tool, capability or sysctl.
	Subject string `json:"subject"`
	Problem string `json:"problem"`
	// Fix is the remedy.
	Fix string `json:"fix"`
	// Fatal findings keep the agent from serving any Service.
	Fatal bool `json:"fatal"`
}

func (f Finding) String() string { return f.Subject + ": " + f.Problem + "; " + f.Fix }

// Result says what Check has found out about the machine.
type Result struct {
	Findings []Finding // none if nothing is missing
	// DataPlane says what balances connections.
	DataPlane DataPlane
	// Rules says where sets and rules are kept. If that is unknown, NoRules says why.
	Rules   Rules
	NoRules error
}

// Check probes the machine, in the network namespace of the calling thread.
func Check(ctx context.Context, needs Needs) Result {
	f := probe(ctx, &needs)
	r := Result{Findings: findings(f, needs), DataPlane: chooseDataPlane(needs.DataPlane, f.ipvs)}
	if r.NoRules = ctx.Err(); r.NoRules == nil {
		r.Rules, r.NoRules = chooseRules(needs.Rules, f, r.DataPlane)
	}
	return r
}

// errAbsent means that the kernel lacks the feature. Any other error of a probe means that this is unknown.
var errAbsent = errors.New("not in this kernel")

// facts are the results of the probes. An error is nil if the feature exists, and wraps errAbsent if it does not.
type facts struct {
	release      string // uname -r
	capabilities uint64 // effective capabilities as a bit mask
	ipvs         error
	dummy        error
	bridge       error // stands in for a dummy
	iptables     error
	detected     iptables.Detection // if there is no error
	nftables     error              // nil if it is not used
	schedulers   map[string]error
	setTypes     map[kernel.SetType]error
	extensions   map[extension]error // nil if they could not be probed
	sysctls      map[string]sysctl
	ipv6         bool
	bridges      []kernel.Bridge
}

// sysctl is a value and whether the agent may change it; both are zero if the sysctl does not exist.
type sysctl struct {
	value    string
	writable bool
}

// extension is a match or target of iptables that the agent's rules use.
type extension struct {
	name   string
	target bool
	module string
	// needed means that every version of iptables uses it. iptables-nft may translate the others to native nftables expressions.
	needed bool
}

var extensions = []extension{
	{"set", false, "xt_set", true},
	{"conntrack", false, "xt_conntrack", false},
	{"comment", false, "xt_comment", false},
	{"mark", false, "xt_mark", false},
	{"MARK", true, "xt_mark", false},
	{"MASQUERADE", true, "xt_MASQUERADE", false},
	{"REJECT", true, "ipt_REJECT", false},
}

var setTypes = []kernel.SetType{kernel.HashIP, kernel.HashIPPort, kernel.HashIPPortIP, kernel.HashIPPortNet}
