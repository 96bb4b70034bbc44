package inspect

import (
	"fmt"
	"io"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// Status is what `status` prints.
type Status struct {
	APIVersion string   `json:"apiVersion"`
	Kind       string   `json:"kind"`
	Agent      bool     `json:"agent"`
	Unknown    []string `json:"unknown"`
	// View is what the agent says; nil when none answers.
	View *view.View `json:"view,omitempty"`
	// Machine is what the kernel says.
	Machine Machine `json:"machine"`
}

// Machine is the kernel as it is now.
type Machine struct {
	Kernel string `json:"kernel"`
	// Modules of IPVS that are loaded; what is built in is not among them.
	Modules []string `json:"modules"`
	// Recorded virtual servers are in our ledger, Others are not.
	Recorded    int              `json:"recordedVirtualServers"`
	Others      int              `json:"otherVirtualServers"`
	Connections view.Connections `json:"connections"`
	// Unreadable says why the virtual servers could not be read; the numbers are 0 then.
	Unreadable string `json:"unreadable,omitempty"`
}

// Count counts the kernel's virtual servers and their connections.
func (m *Machine) Count(servers Servers, ours func(kernel.ServerKey) bool) {
	for key, server := range servers {
		if !ours(key) {
			m.Others++
			continue
		}
		m.Recorded++
		for _, d := range server.Destinations {
			m.Connections.Active += uint64(d.Stats.Active)
			m.Connections.Inactive += uint64(d.Stats.Inactive)
		}
	}
}

// withoutAgent is what the kernel does not tell.
const withoutAgent = "sources, passes, drift, problems, configuration: only a running agent knows them"

// StatusOf joins the agent's view, which may be nil, and the machine.
func StatusOf(v *view.View, m Machine) Status {
	s := Status{APIVersion: view.Version, Kind: "Status", Agent: v != nil, Unknown: []string{}, View: v, Machine: m}
	if v == nil {
		s.Unknown = append(s.Unknown, withoutAgent)
	}
	if m.Unreadable != "" {
		s.Unknown = append(s.Unknown, "virtual servers and connections: "+m.Unreadable)
	}
	return s
}

// PrintStatus writes it for people. What is wrong begins with an exclamation mark.
func PrintStatus(w io.Writer, s Status) error {
	t := newTable()
	if v := s.View; v != nil {
		agentRows(t, v)
	} else {
		t.row("! agent", "none answers; "+withoutAgent)
	}
	t.row("kernel", s.Machine.Kernel)
	t.row("modules", strings.Join(s.Machine.Modules, " "))
	if why := s.Machine.Unreadable; why != "" {
		t.row("! IPVS", why)
	} else {
		kernelRow(t, s.Machine)
	}
	if s.View != nil {
		troubleRows(t, s.View)
	}
	return t.write(w)
}

func kernelRow(t *table, m Machine) {
	t.row("in the kernel", fmt.Sprintf("%d virtual servers of ours, %d of others; %d active and %d inactive connections through ours",
		m.Recorded, m.Others, m.Connections.Active, m.Connections.Inactive))
}

func agentRows(t *table, v *view.View) {
	n := v.Node
	t.row("agent", fmt.Sprintf("kube-ipvs %s, process %d, since %s", n.Version, n.Process, n.Started.UTC().Format(clock)))
	t.row("node", n.Name)
	t.row("iptables", n.IPTables)
	t.row("families", strings.Join(n.Families, " "))
	for _, why := range n.NotServed {
		t.row("! not served", why)
	}
	if n.Configuration != "" {
		t.row("configuration", n.Configuration)
	}
	if n.ConfigurationRefused != "" {
		t.row("! configuration", "refused, the settings from before are in force: "+strings.ReplaceAll(n.ConfigurationRefused, "\n", "; "))
	}
	for _, s := range n.Settings {
		t.row("setting", fmt.Sprintf("%s=%s (%s)", s.Name, s.Value, s.From))
	}
	for _, s := range v.Sources {
		t.row(sourceRow(v, s)...)
	}
	if !v.Agent.Synced {
		t.row("! sources", "not everything has been heard of yet; nothing is written before")
	}
	t.row("last pass", passText(v, v.Agent.LastPass))
	t.row("last full pass", passText(v, v.Agent.LastFullPass))
	t.row("drift", driftText(v))
	t.row("wanted", fmt.Sprintf("%d Services, %d virtual servers, %d destinations; %d draining",
		v.Totals.Services, v.Totals.VirtualServers, v.Totals.Destinations, v.Totals.Draining))
}

func sourceRow(v *view.View, s view.Source) []string {
	title, heard := "source "+s.Name, "nothing heard yet"
	switch {
	case s.Heard != nil:
		heard = "last heard " + ago(v.Time.Sub(*s.Heard).Seconds())
	case v.Agent.Synced: // a directory of manifests speaks when something changes, and not otherwise
		heard = "read"
	}
	if s.Error != "" {
		return []string{"! " + title, heard + "; " + s.Error}
	}
	return []string{title, heard}
}

func ago(seconds float64) string { return fmt.Sprintf("%.0fs ago", max(seconds, 0)) }

func passText(v *view.View, p *view.Pass) string {
	if p == nil {
		return "none yet"
	}
	return fmt.Sprintf("%s, took %.3fs, %d changes, %d failed", ago(v.Time.Sub(p.Started).Seconds()), p.Seconds, p.Changes, p.Failed)
}

func driftText(v *view.View) string {
	if v.Agent.Drift == 0 || v.Agent.LastDrift == nil {
		return "none since the start"
	}
	return fmt.Sprintf("%d differences that somebody else made were repaired since the start, the last %s",
		v.Agent.Drift, ago(v.Time.Sub(*v.Agent.LastDrift).Seconds()))
}

func troubleRows(t *table, v *view.View) {
	if v.Agent.Error != "" {
		retry := ""
		if v.Agent.Retry != nil {
			retry = fmt.Sprintf(" (tried again at %s)", v.Agent.Retry.UTC().Format(clock))
		}
		t.row("! error", v.Agent.Error+retry)
	}
	for _, f := range v.Agent.Foreign {
		t.row("! foreign", fmt.Sprintf("%s stands where Service %s wants to be served", f.Server, f.Service))
	}
	for _, l := range v.Agent.Leftovers {
		t.row("! leftover", l+" is not recorded as ours and belongs to no Service")
	}
	for _, p := range v.Problems {
		t.row("! problem", p)
	}
}
