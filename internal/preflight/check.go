package preflight

import (
	"context"
	"errors"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// Needs is what the configuration uses of the kernel.
type Needs struct {
	Schedulers []string
	Families   []inet.Family
	Sysctls    []kernel.SysctlSetting
}

// Finding is one problem.
type Finding struct {
	// Subject is what it is about: a kernel module, a tool, a capability, a sysctl.
	Subject string `json:"subject"`
	Problem string `json:"problem"`
	// Fix is what an operator can do.
	Fix string `json:"fix"`
	// Fatal findings keep the agent from serving any Service.
	Fatal bool `json:"fatal"`
}

func (f Finding) String() string { return f.Subject + ": " + f.Problem + "; " + f.Fix }

// Check probes the machine, in the network namespace of the calling thread. Without findings, nothing is missing.
func Check(ctx context.Context, needs Needs) []Finding { return findings(probe(ctx, needs), needs) }

// errAbsent: the kernel does not have it. Any other error of a probe means that this is unknown.
var errAbsent = errors.New("not in this kernel")

// facts are the results of the probes. An error is nil for what exists and wraps errAbsent for what does not.
type facts struct {
	release      string // uname -r
	capabilities uint64 // effective ones, a bit each
	ipvs         error
	dummy        error
	iptables     error
	without      map[inet.Family]error // families for which iptables does not work
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
	// needed: every version of iptables asks the kernel for it. The others may be expressed in nftables' own words.
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
