package preflight

import (
	"context"
	"errors"
	"fmt"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/iptables"
)

// Needs are the kernel features that the configuration requires.
type Needs struct {
	Schedulers []string
	Families   []inet.Family
	// DataPlane and Rules are the settings that determine the mode.
	DataPlane, Rules string
	// Objects returns the agent's kernel objects in a mode. If it is nil, only the mode itself is checked.
	Objects func(kernel.Mode) Objects
	// AcceptServices is true if the agent's rules have to overrule the host's firewall.
	AcceptServices bool
}

// Objects are the agent's kernel objects that do not depend on Services.
type Objects struct {
	Sysctls  []kernel.SysctlSetting
	Sets     []kernel.Set
	Rulesets []kernel.Ruleset
}

// Result is the result of Check.
type Result struct {
	// Findings lists what the machine lacks, the most serious first. A broken finding prevents the agent from serving
	// any Service.
	Findings []finding.Finding
	Choice
	// IPTables describes this node's iptables. It is empty if Check did not probe iptables, or if iptables does not
	// work.
	IPTables iptables.Detection
	// NoRules is the reason why the agent cannot create sets and rules, or nil if it can.
	NoRules error
}

// Check probes the machine, in the network namespace of the calling thread, and selects the mode.
func Check(ctx context.Context, needs Needs) Result {
	f := probeMode(ctx, needs)
	r := Result{Choice: choose(f, needs), IPTables: f.detected}
	var objects Objects
	if needs.Objects != nil {
		objects = needs.Objects(r.Mode)
	}
	f.probe(ctx, needs, objects, r.Mode)
	r.Findings = findings(f, needs, objects.Sysctls, r.Choice)
	finding.Sort(r.Findings)
	if r.NoRules = ctx.Err(); r.NoRules == nil && !r.Mode.RulesInNFTables() && f.iptables != nil {
		r.NoRules = fmt.Errorf("find this node's iptables: %w", f.iptables)
	}
	return r
}

// errAbsent means that the kernel lacks the feature. Any other error of a probe means that the result is unknown.
var errAbsent = errors.New("not in this kernel")

// facts are the results of the probes. An error is nil if the feature exists, and wraps errAbsent if it does not.
type facts struct {
	kernel       kernelVersion
	capabilities uint64 // effective capabilities as a bit mask
	ipvs         error
	ipvsFamily   uint16
	dummy        error
	bridge       error // can replace a dummy device
	iptables     error
	detected     iptables.Detection // if there is no error
	nftables     error              // nil if the mode does not use it
	schedulers   map[string]error
	setTypes     map[kernel.SetType]error
	extensions   map[extension]error // nil if not probed
	sysctls      map[string]sysctl
	kernelIPv6   bool // not booted without IPv6
	ipv6         bool // enabled on new devices
	bridges      []kernel.Bridge
}

// sysctl is the state of a sysctl, or zero if it does not exist. writable reports whether the agent may change it.
type sysctl struct {
	value    string
	writable bool
}

// extension is an iptables match or target that the agent's rules use.
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
