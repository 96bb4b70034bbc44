package preflight

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/iptables"
)

// Needs are the kernel features that the configuration requires.
type Needs struct {
	Schedulers       []string
	Families         []inet.Family
	DataPlane, Rules string
	// InProcess is true if the agent's process serves the addresses of Services.
	InProcess bool
	// Objects returns the agent's kernel objects in a mode; nil if only the mode is checked.
	Objects func(kernel.Mode) Objects
	// AcceptServices is true if the agent's rules must override the host's firewall.
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
	// Findings are sorted by severity. If one has the severity Broken, the agent cannot serve any Service.
	Findings []finding.Finding
	Choice
	// IPTables is empty if iptables was not probed or does not work.
	IPTables iptables.Detection
	// NoRules is the reason why the agent cannot create sets and rules; nil if it can.
	NoRules error
}

// Check probes the machine, in the network namespace of the calling thread, and selects the mode.
func Check(ctx context.Context, needs Needs) Result {
	switch {
	case needs.InProcess:
		return inProcess()
	case needs.DataPlane == kernel.DataPlaneUserspace:
		return inUserspace()
	}
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

// Print writes the findings as text. If nftables replaces IPVS, iptables or ipset, Print also reports this.
func (r Result) Print(w io.Writer) error {
	if len(r.Findings) == 0 || r.Findings[0].Severity == finding.Notice {
		fmt.Fprintln(w, "nothing is missing")
	}
	err := finding.Print(w, r.Findings)
	if r.Mode.DataPlane() != kernel.DataPlaneIPVS {
		fmt.Fprintf(w, "connections are balanced by %s\n", r.DataPlane())
	}
	if r.Mode.RulesInNFTables() {
		fmt.Fprintf(w, "sets and rules are kept in %s\n", r.Rules())
	}
	return err
}

// errAbsent means that the kernel lacks the feature. Any other probe error means that the result is unknown.
var errAbsent = errors.New("not in this kernel")

// facts are the results of the probes. A nil error means that the feature exists. errAbsent means that it does not.
type facts struct {
	kernel       kernelVersion
	capabilities uint64 // effective capabilities as a bit mask
	ipvs         error
	ipvsFamily   uint16
	dummy        error
	bridge       error // a bridge can replace a dummy device
	iptables     error
	detected     iptables.Detection // valid if iptables is nil
	nftables     error              // nil if the mode does not use it
	schedulers   map[string]error
	setTypes     map[kernel.SetType]error
	extensions   map[extension]error // nil if not probed
	sysctls      map[string]sysctl
	kernelIPv6   bool // IPv6 was not disabled at boot
	ipv6         bool // enabled on new devices
	bridges      []kernel.Bridge
}

// sysctl is the state of a sysctl, or zero if it does not exist.
type sysctl struct {
	value    string
	writable bool
	// fixed is true if only the host's network namespace can set the sysctl.
	fixed bool
}

type extension struct {
	name   string
	target bool
	module string
	// needed is false if iptables-nft may use native nftables expressions instead. iptables-legacy needs all extensions.
	needed bool
}

func (f *facts) needs(e extension) bool { return e.needed || f.detected.Variant == iptables.Legacy }

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
