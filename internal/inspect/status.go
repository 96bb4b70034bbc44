package inspect

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// Status is the JSON document of the command status.
type Status struct {
	view.Header
	Agent   bool     `json:"agent"`
	Unknown []string `json:"unknown"`
	// Findings are the reasons why this node may not serve the current Services. Problems of individual Services are
	// not included. Unwell contains the same findings as text.
	Findings []finding.Finding `json:"findings"`
	Unwell   []string          `json:"unwell"`
	// Silence is the reason why the agent did not respond.
	Silence string `json:"silence,omitempty"`
	// View is the agent's state; nil if the agent did not respond.
	View    *view.View `json:"view,omitempty"`
	Machine Machine    `json:"machine"`
}

// Machine is the current state of the kernel.
type Machine struct {
	Kernel string `json:"kernel"`
	// Modules are the loaded IPVS modules, except those built into the kernel.
	Modules []string `json:"modules"`
	// Owned virtual servers have an owner record. Foreign ones do not.
	Owned   int `json:"ownedVirtualServers"`
	Foreign int `json:"foreignVirtualServers"`
	// Connections counts the connections of owned virtual servers. It is nil if they could not be counted: Uncounted is the reason.
	Connections *view.Connections `json:"connections,omitempty"`
	Uncounted   string            `json:"uncounted,omitempty"`
	// Error is the reason why the virtual servers could not be read.
	Error string `json:"error,omitempty"`
}

// Count counts the kernel's virtual servers and, if uncounted is empty, their connections.
func (m *Machine) Count(servers Servers, uncounted string, ours func(kernel.ServerKey) bool) {
	var through view.Connections
	for key, server := range servers {
		if !ours(key) {
			m.Foreign++
			continue
		}
		m.Owned++
		for _, d := range server.Destinations {
			through.Active += uint64(d.Stats.Active)
			through.Inactive += uint64(d.Stats.Inactive)
		}
	}
	if m.Uncounted = uncounted; uncounted == "" {
		m.Connections = &through
	}
}

const withoutAgent = "sources, syncs, drift, problems and configuration are known only to a running agent"

// StatusOf joins the machine's state and the agent's view. If the agent did not respond, v is nil and silence is the reason.
func StatusOf(v *view.View, silence error, m Machine) Status {
	why, servers := "", m.Owned
	if silence != nil {
		why = silence.Error()
	}
	if m.Error != "" {
		servers = view.Unread
	}
	s := Status{Header: view.HeaderOf("Status"), Agent: v != nil, Unknown: []string{}, Findings: view.Findings(v, why, servers), Unwell: []string{},
		Silence: why, View: v, Machine: m}
	if errors.Is(silence, fs.ErrPermission) { // the agent may be healthy
		s.Findings[0].Severity = finding.Warning
	}
	for _, f := range s.Findings {
		s.Unwell = append(s.Unwell, f.Summary())
	}
	if v == nil {
		s.Unknown = append(s.Unknown, withoutAgent)
	}
	if m.Error != "" {
		s.Unknown = append(s.Unknown, "virtual servers and connections: "+m.Error)
	}
	return s
}

// PrintStatus writes a status as text. Lines that need attention begin with an exclamation mark.
func PrintStatus(w io.Writer, s Status) error {
	t := newTable()
	if s.View != nil {
		agentRows(t, s.View)
	}
	for _, f := range s.Findings {
		t.row("! "+f.Subject, f.Problem)
		for _, line := range f.Details() {
			t.more(line)
		}
	}
	if s.View == nil {
		t.row("unknown", withoutAgent)
	}
	t.row("kernel", s.Machine.Kernel)
	t.row("modules", strings.Join(s.Machine.Modules, " "))
	switch why := s.Machine.Error; {
	case why != "" && s.View != nil && s.View.Node.Mode == kernel.Userspace:
		t.row("virtual servers", why)
	case why != "":
		t.row("! kernel", why)
	default:
		kernelRow(t, s.Machine)
	}
	if s.View != nil {
		problemRows(t, s.View)
	}
	return t.write(w)
}

func kernelRow(t *table, m Machine) {
	through := "connections could not be counted: " + m.Uncounted
	if c := m.Connections; c != nil {
		through = fmt.Sprintf("%d active and %d inactive connections to Services", c.Active, c.Inactive)
	}
	t.row("in the kernel", fmt.Sprintf("%d virtual servers of kube-ipvs, %d foreign; %s", m.Owned, m.Foreign, through))
}

func agentRows(t *table, v *view.View) {
	n := v.Node
	t.row("agent", fmt.Sprintf("kube-ipvs %s, PID %d, since %s", n.Version, n.PID, n.Started.UTC().Format(timeFormat)))
	t.row("node", n.Name)
	if n.DataPlane != "" {
		t.row("data plane", n.DataPlane)
	}
	t.row("rules", n.Rules)
	t.row("families", strings.Join(n.Families, " "))
	for _, why := range n.UnservedFamilies {
		t.row("! not served", why)
	}
	if n.ConfigFile != "" {
		t.row("configuration", n.ConfigFile)
	}
	for _, s := range n.Settings {
		t.row("setting", fmt.Sprintf("%s=%s (%s)", s.Name, s.Value, s.From))
	}
	for _, s := range v.Sources {
		t.row("source "+s.Name, contactText(v, s))
	}
	if v.Snapshot != nil {
		t.row(snapshotRow(v, v.Snapshot)...)
	}
	t.row("last sync", syncText(v, v.Agent.LastSync))
	t.row("last full sync", syncText(v, v.Agent.LastFullSync))
	t.row("drift", driftText(v))
	for _, d := range v.Agent.Drifts {
		t.row(fmt.Sprintf("drift %s", d.Part), fmt.Sprintf("%d %s, found %d times, the first %s, the last %s: %s", d.Count, d.Kind, d.Audits,
			ago(v.Time.Sub(d.First).Seconds()), ago(v.Time.Sub(d.Last).Seconds()), strings.Join(d.What, "; ")))
	}
	t.row("wanted", fmt.Sprintf("%d Services, %d virtual servers, %d destinations; %d draining",
		v.Totals.Services, v.Totals.VirtualServers, v.Totals.Destinations, v.Totals.Draining))
}

func snapshotRow(v *view.View, s *view.Snapshot) []string {
	age := "not written yet"
	if s.At != nil {
		age = "of " + ago(v.Time.Sub(*s.At).Seconds())
	}
	if s.Served {
		return []string{"! snapshot", fmt.Sprintf("%s, %s, is served until the API server responds", s.File, age)}
	}
	return []string{"snapshot", s.File + ", " + age}
}

func contactText(v *view.View, s view.Source) string {
	switch {
	case s.LastContact != nil:
		return "last contact " + ago(v.Time.Sub(*s.LastContact).Seconds())
	case v.Agent.Synced: // manifest directories have no heartbeat
		return "read"
	}
	return "no contact yet"
}

func ago(seconds float64) string { return fmt.Sprintf("%.0fs ago", max(seconds, 0)) }

func syncText(v *view.View, s *view.Sync) string {
	if s == nil {
		return "none yet"
	}
	return fmt.Sprintf("%s, took %.3fs, %d changes, %d failed", ago(v.Time.Sub(s.Started).Seconds()), s.Seconds, s.Changes, s.Failed)
}

func driftText(v *view.View) string {
	if v.Agent.Drift == 0 || v.Agent.LastDrift == nil {
		return "none since the agent started"
	}
	return fmt.Sprintf("%d differences repaired since the agent started, the last %s",
		v.Agent.Drift, ago(v.Time.Sub(*v.Agent.LastDrift).Seconds()))
}

func problemRows(t *table, v *view.View) {
	for _, f := range v.Agent.Foreign {
		t.row("! foreign", fmt.Sprintf("%s was not created by kube-ipvs; Service %s is not served there", f.Server, f.Service))
	}
	for _, l := range v.Agent.Leftovers {
		t.row("! leftover", l+" has no Service and no owner record; kept")
	}
	for _, p := range v.OtherProblems() {
		t.row("! problem", p)
	}
}
