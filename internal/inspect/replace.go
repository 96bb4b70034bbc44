package inspect

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

const mostReplaced = 100

// Takeover describes an agent that takes over another proxy's virtual servers.
type Takeover struct {
	// View is what the agent would serve if no range were excluded.
	View   *view.View
	Kernel *kernel.State
	// Excluded and Timeouts are settings of the agent.
	Excluded []netip.Prefix
	Timeouts kernel.Timeouts
}

// Findings lists what clients will notice. Services with the same difference share a finding.
func (t Takeover) Findings() []finding.Finding {
	r := replacing{Takeover: t, have: t.Kernel.Servers, used: map[kernel.ServerKey]bool{}, found: map[string]*finding.Finding{}}
	for _, s := range t.View.Services {
		for _, f := range s.Frontends {
			r.frontend(s, f)
		}
	}
	for _, key := range slices.SortedFunc(maps.Keys(r.have), kernel.ServerKey.Compare) {
		if !r.used[key] {
			r.unused(t.View, key)
		}
	}
	r.compareTimeouts()
	var all []finding.Finding
	for _, problem := range slices.Sorted(maps.Keys(r.found)) {
		f := r.found[problem]
		f.Evidence = byService(f.Evidence)
		if more := len(f.Evidence) - mostReplaced; more > 0 {
			f.Evidence = append(f.Evidence[:mostReplaced:mostReplaced], fmt.Sprintf("and %d more", more))
		}
		all = append(all, *f)
	}
	finding.Sort(all)
	return all
}

// byService joins consecutive pieces of evidence about the same Service.
func byService(evidence []string) (all []string) {
	last, more := "", 0
	end := func() {
		if more > 0 {
			all[len(all)-1] += fmt.Sprintf(" and %d more", more)
		}
		more = 0
	}
	for _, text := range evidence {
		service, _, named := strings.Cut(text, " at ")
		if named && service == last && !strings.Contains(text, ": ") {
			more++
			continue
		}
		end()
		last, all = service, append(all, text)
	}
	end()
	return all
}

type replacing struct {
	Takeover
	have  map[kernel.ServerKey]kernel.ObservedServer
	used  map[kernel.ServerKey]bool
	found map[string]*finding.Finding // by problem
}

func (r *replacing) add(severity finding.Severity, problem, evidence, remedy string) {
	f := r.found[problem]
	if f == nil {
		created := finding.New(severity, "Services", problem, nil, remedy)
		f = &created
		r.found[problem] = f
	}
	f.Evidence = append(f.Evidence, evidence)
}

func (r *replacing) frontend(s view.Service, f view.Frontend) {
	protocol, err := inet.ParseProtocol(f.Protocol)
	if err != nil {
		return
	}
	key := kernel.ServerKey{Addr: f.Address, Protocol: protocol}
	now, exists := r.have[key]
	r.used[key] = true
	if f.AllPorts {
		r.used[key.AllPorts()] = true
		if !exists { // an agent has already replaced the virtual servers of individual ports
			now, exists = r.have[key.AllPorts()]
		}
	}
	name := fmt.Sprintf("%s at %s/%s", s.ID(), f.Address, f.Protocol)
	switch {
	case f.State == view.Conflict && exists && s.ID() != f.Owner: // the owner's frontend is compared instead
		return
	case r.excludes(f.Address.Addr()) && exists:
		r.add(finding.Warning, "would no longer be updated, because ipvs.excludeCIDRs reserves their addresses for other programs", name,
			"exclude only ranges in which the agent should serve no Service (--ipvs-exclude-cidrs)")
	case r.excludes(f.Address.Addr()):
	case f.State == view.ForeignServer:
		r.add(finding.Broken, "would not be served, because the virtual server there seems to belong to another program", name+": "+f.Reason,
			"delete the virtual server if nothing needs it")
	case !exists:
		r.add(finding.Notice, "would be served, but are not served now", name, "nothing to do")
	case f.Server != "":
		r.compare(name, f, now)
	}
}

func (r *replacing) excludes(a netip.Addr) bool {
	return slices.ContainsFunc(r.Excluded, func(p netip.Prefix) bool { return p.Contains(a) })
}

// compareTimeouts finds IPVS timeouts that would change, at the start or, if only the other proxy sets them, after the next reboot.
func (r *replacing) compareTimeouts() {
	now := r.Kernel.Timeouts
	if now == (kernel.Timeouts{}) { // not read
		return
	}
	add := func(c kernel.TimeoutChange, when string) {
		r.add(finding.Warning, fmt.Sprintf("the IPVS timeout of idle %s would change from %s to %s%s", c.Of, c.From, c.To, when), "ipvsadm -L --timeout",
			"nothing to do if this is intended; otherwise set ipvs.tcpTimeout, ipvs.tcpFinTimeout or ipvs.udpTimeout")
	}
	started := now.With(r.Timeouts)
	for _, c := range now.ChangesTo(started) {
		add(c, "")
	}
	for _, c := range started.ChangesTo(kernel.DefaultTimeouts.With(r.Timeouts)) {
		add(c, " after the next reboot")
	}
}

const annotate = "nothing to do if this is intended; otherwise set the Service's annotation or the agent's flag (docs/annotations.md)"

func (r *replacing) compare(name string, f view.Frontend, now kernel.ObservedServer) {
	if f.Scheduler != now.Scheduler {
		r.add(finding.Warning, fmt.Sprintf("the scheduler would change from %s to %s", now.Scheduler, f.Scheduler), name, annotate)
	}
	timeout := uint32(0)
	if now.Flags&kernel.FlagPersistent != 0 {
		timeout = now.Timeout
	}
	if f.Affinity != timeout {
		r.add(finding.Warning, fmt.Sprintf("session affinity would change from %s to %s", seconds(timeout), seconds(f.Affinity)), name, annotate)
	}
	switch {
	case !f.AllPorts:
		r.compareEndpoints(name, f, now)
	case now.Key != now.Key.AllPorts():
		r.add(finding.Notice, "one virtual server would serve all ports of the address", name, "nothing to do")
	}
}

func (r *replacing) compareEndpoints(name string, f view.Frontend, now kernel.ObservedServer) {
	wanted, kept := map[string]bool{}, 0
	for _, e := range f.Endpoints {
		if e.Wanted != nil {
			wanted[e.Address.String()] = true
		}
	}
	var gone []string
	for _, d := range now.Destinations {
		if wanted[d.Addr.String()] {
			kept++
		} else if d.Weight > 0 {
			gone = append(gone, d.Addr.String())
		}
	}
	if len(gone) > 0 {
		r.add(finding.Warning, "endpoints would get no new connections", name+": "+strings.Join(gone, ", "), "compare the Service's EndpointSlices with what the proxy serves")
	}
	if kept == 0 && len(wanted) > 0 && len(now.Destinations) > 0 {
		r.add(finding.Warning, "no endpoint would remain", name, "compare the Service's EndpointSlices with what the proxy serves")
	}
}

func seconds(n uint32) string {
	if n == 0 {
		return "none"
	}
	return fmt.Sprintf("%d s", n)
}

// unused adds a finding about a virtual server that the agent would not serve. If a Service's problem mentions the
// address, that problem is the reason.
func (r *replacing) unused(v *view.View, key kernel.ServerKey) {
	reason, shown := "", fmt.Sprintf("%s/%s", key.Addr, key.Protocol)
	for _, s := range v.Services {
		for _, p := range s.Problems {
			if reason == "" && namesAddress(p, key) {
				reason = p
			}
		}
	}
	if reason == "" {
		r.add(finding.Notice, "virtual servers belong to no Service that the agent would serve; it leaves them as they are", shown,
			"nothing to do if another program or proxy needs them")
		return
	}
	r.add(finding.Broken, "would no longer be served", shown+": "+reason, "fix the Service's problem, or accept that these frontends close")
}

func namesAddress(text string, key kernel.ServerKey) bool {
	addr := key.Addr.Addr().String()
	return slices.ContainsFunc(strings.FieldsFunc(text, func(c rune) bool { return strings.ContainsRune(` ,;()"[]/`, c) }), func(word string) bool {
		return strings.TrimRight(word, ".:") == addr || strings.HasPrefix(word, addr+":")
	})
}
