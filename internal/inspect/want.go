package inspect

import (
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// Base writes the part of the wanted state that does not depend on Services.
func Base(w io.Writer, base want.Base) {
	for _, s := range base.Sysctls {
		fmt.Fprintf(w, "sysctl -w %s\n", s)
	}
	if base.Timeouts != (kernel.Timeouts{}) {
		fmt.Fprintln(w, kernel.Op{Verb: kernel.Ensure, Object: base.Timeouts})
	}
	fmt.Fprintf(w, "ip link add %s type dummy\n", kernel.Device)
	for _, s := range base.Sets {
		fmt.Fprintf(w, "ipset create %s\n", s.Set)
	}
	for _, r := range base.Rulesets {
		fmt.Fprintf(w, "\n# %s chains\n", r.Family)
		for _, j := range r.Jumps {
			writeRule(w, "-I", j.ChainID, j.Rule)
		}
		for _, c := range r.Chains {
			for _, rule := range c.Rules {
				writeRule(w, "-A", c.ChainID, rule)
			}
		}
	}
}

func writeRule(w io.Writer, verb string, id kernel.ChainID, r kernel.Rule) {
	fmt.Fprintf(w, "-t %s %s %s %s  # %s\n", id.Table, verb, id.Chain, r, r.Why)
}

// Services writes the virtual servers with their destinations, set entries and addresses.
func Services(w io.Writer, state *want.State) {
	for _, key := range slices.SortedFunc(maps.Keys(state.Servers), kernel.ServerKey.Compare) {
		writeServer(w, state.Servers[key], &state.Base)
	}
}

func writeServer(w io.Writer, s *want.Server, base *want.Base) {
	fmt.Fprintf(w, "\n# %s\n", s.Owner)
	if s.SlowStart > 0 {
		fmt.Fprintf(w, "# new endpoints reach full weight within %s\n", s.SlowStart)
	}
	fmt.Fprintf(w, "ipvsadm -A %s\n", s.Server)
	for _, d := range s.Destinations {
		fmt.Fprintf(w, "ipvsadm -a %s %s\n", s.Key, d)
	}
	for _, m := range s.Members {
		fmt.Fprintf(w, "ipset add %s\n", m)
	}
	if !s.Unbound {
		addr := s.Key.Addr.Addr()
		fmt.Fprintln(w, kernel.Op{Verb: kernel.Create, Object: kernel.BoundAddress{Addr: addr, Binding: base.BindingOf(addr)}})
	}
}

// State writes the complete wanted state.
func State(w io.Writer, state *want.State) {
	Base(w, state.Base)
	Services(w, state)
}

// StateJSON is the JSON form of the wanted state.
type StateJSON struct {
	view.Header
	Sysctls  []sysctlJSON `json:"sysctls"`
	Timeouts timeoutsJSON `json:"timeouts"`
	Device   string       `json:"device"`
	Sets     []setJSON    `json:"sets"`
	Rules    []ruleJSON   `json:"rules"`
	Services []serverJSON `json:"virtualServers"`
}

// timeoutsJSON are IPVS's timeouts; 0 keeps the kernel's value.
type timeoutsJSON struct {
	TCP    int `json:"tcpSeconds"`
	TCPFin int `json:"tcpFinSeconds"`
	UDP    int `json:"udpSeconds"`
}

// sysctlJSON is a sysctl. The kernel may reject the value of an optional sysctl.
type sysctlJSON struct {
	Name     string `json:"name"`
	Value    string `json:"value"`
	Optional bool   `json:"optional"`
}

type setJSON struct {
	Name    string `json:"name"`
	Type    string `json:"type"`
	Family  string `json:"family"`
	MaxElem uint32 `json:"maxElem"`
}

type ruleJSON struct {
	Family string `json:"family"`
	Table  string `json:"table"`
	Chain  string `json:"chain"`
	// Jump is true for a jump from a built-in chain to a chain of the agent.
	Jump bool   `json:"jump"`
	Rule string `json:"rule"`
	Why  string `json:"why"`
}

type serverJSON struct {
	Service   string         `json:"service"`
	Address   netip.AddrPort `json:"address"`
	Protocol  string         `json:"protocol"`
	Scheduler string         `json:"scheduler"`
	Flags     uint32         `json:"flags"`
	// Affinity is the timeout of session affinity, or 0 for none.
	Affinity uint32 `json:"affinitySeconds"`
	// ClientBits is the prefix length of client addresses for affinity; absent for full addresses.
	ClientBits uint8 `json:"clientBits,omitempty"`
	// SlowStart is the time until a new endpoint reaches its full weight.
	SlowStart int `json:"slowStartSeconds,omitempty"`
	// Bound is true if the address is bound to kube-ipvs0, and false if the node already has the address.
	Bound        bool              `json:"bound"`
	Destinations []destinationJSON `json:"destinations"`
	SetEntries   []string          `json:"setEntries"`
}

type destinationJSON struct {
	Address netip.AddrPort `json:"address"`
	Weight  uint32         `json:"weight"`
	// MaxConnections and ResumeConnections are absent if there is no limit.
	MaxConnections    uint32 `json:"maxConnections,omitempty"`
	ResumeConnections uint32 `json:"resumeConnections,omitempty"`
}

// AsJSON converts the wanted state to its JSON form.
func AsJSON(state *want.State) StateJSON {
	t := state.Base.Timeouts
	out := StateJSON{
		Header:  view.HeaderOf("WantedState"),
		Sysctls: []sysctlJSON{}, Device: kernel.Device, Sets: []setJSON{}, Rules: []ruleJSON{}, Services: []serverJSON{},
		Timeouts: timeoutsJSON{int(t.TCP.Seconds()), int(t.TCPFin.Seconds()), int(t.UDP.Seconds())},
	}
	for _, s := range state.Base.Sysctls {
		out.Sysctls = append(out.Sysctls, sysctlJSON(s))
	}
	for _, s := range state.Base.Sets {
		out.Sets = append(out.Sets, setJSON{s.Name, string(s.Type), s.Family.String(), s.MaxElem})
	}
	for _, r := range state.Base.Rulesets {
		for _, j := range r.Jumps {
			out.Rules = append(out.Rules, ruleJSON{r.Family.String(), j.Table, j.ChainID.Chain, true, j.Rule.String(), j.Why})
		}
		for _, c := range r.Chains {
			for _, rule := range c.Rules {
				out.Rules = append(out.Rules, ruleJSON{r.Family.String(), c.Table, c.ChainID.Chain, false, rule.String(), rule.Why})
			}
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(state.Servers), kernel.ServerKey.Compare) {
		out.Services = append(out.Services, newServerJSON(state.Servers[key]))
	}
	return out
}

func newServerJSON(s *want.Server) serverJSON {
	out := serverJSON{
		Service: s.Owner.String(), Address: s.Key.Addr, Protocol: s.Key.Protocol.String(),
		Scheduler: s.Scheduler, Flags: s.Flags, Affinity: s.Timeout, Bound: !s.Unbound, SlowStart: int(s.SlowStart.Seconds()),
		Destinations: []destinationJSON{}, SetEntries: []string{},
	}
	if int(s.MaskBits) != s.Key.Family().Bits() {
		out.ClientBits = s.MaskBits
	}
	for _, d := range s.Destinations {
		out.Destinations = append(out.Destinations, destinationJSON{d.Addr, d.Weight, d.Upper, d.Lower})
	}
	for _, m := range s.Members {
		out.SetEntries = append(out.SetEntries, m.String())
	}
	return out
}

// Plan writes the operations of a plan, phase by phase.
func Plan(w io.Writer, plan diff.Plan, mode kernel.Mode) {
	for _, phase := range plan.Phases {
		fmt.Fprintf(w, "# %s\n", phase.Name)
		for _, op := range phase.Ops {
			fmt.Fprintln(w, finding.Printable(op.In(mode))) // another program may have written it
		}
	}
}

// PlanJSON is the JSON form of a plan.
type PlanJSON struct {
	view.Header
	Phases []phaseJSON `json:"phases"`
}

type phaseJSON struct {
	Phase      string   `json:"phase"`
	Operations []string `json:"operations"`
}

// PlanAsJSON converts a plan to its JSON form.
func PlanAsJSON(plan diff.Plan, mode kernel.Mode) PlanJSON {
	out := PlanJSON{Header: view.HeaderOf("Plan"), Phases: []phaseJSON{}}
	for _, phase := range plan.Phases {
		p := phaseJSON{Phase: phase.Name, Operations: []string{}}
		for _, op := range phase.Ops {
			p.Operations = append(p.Operations, op.In(mode))
		}
		out.Phases = append(out.Phases, p)
	}
	return out
}
