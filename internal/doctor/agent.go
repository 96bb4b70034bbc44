package doctor

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

const (
	// Older drift is not reported.
	driftWithin = time.Hour
	// shown is the maximum number of examples in a finding.
	shown = 5
)

// examples shortens a list to its first entries and a count of the rest.
func examples(all []string) []string {
	if len(all) <= shown {
		return all
	}
	return append(append([]string{}, all[:shown]...), fmt.Sprintf("and %d more", len(all)-shown))
}

func checkAgent(f Facts) []finding.Finding {
	servers := f.VirtualServers
	if servers == 0 && slices.ContainsFunc(f.Unread, func(why string) bool { return strings.HasPrefix(why, string(explain.Servers)+": ") }) {
		servers = view.Unread
	}
	found := view.Findings(f.View, f.Silence, servers)
	if f.Files != "" {
		found[0].Evidence = []string{f.Files}
		found[0].Remedy = "the agent can neither accept connections nor start iptables: raise its limit of open files (LimitNOFILE= of the service, or the container runtime's), " +
			"and restart it"
	}
	return found
}

// checkPorts finds ports of a running agent that do not respond or respond with an error.
func checkPorts(f Facts) []finding.Finding {
	if f.View == nil {
		return nil
	}
	if failed := f.loopbackFailures(); len(failed) > 0 {
		return finding.One(finding.Warning, "loopback", "connections to 127.0.0.1 fail, although the agent answers on its socket; the kubelet's probes of the agent may fail, too",
			failed, "look at the device lo (`ip link show lo`, `tc qdisc show dev lo`), and at rules in OUTPUT, INPUT and POSTROUTING that match it")
	}
	var found []finding.Finding
	for _, a := range f.Answers {
		if a.URL == kubeProxyMode { // checkProxies reports it
			continue
		}
		health := strings.HasSuffix(a.URL, "/livez") || strings.HasSuffix(a.URL, "/readyz")
		severity, remedy := finding.Warning, "the agent's log names the program that uses this port; no metrics are served until it is stopped"
		if health {
			severity, remedy = finding.Broken, "`kube-ipvs status` shows the reason; the kubelet restarts an agent whose /livez fails"
		}
		switch {
		case a.Error != "":
			found = append(found, finding.New(severity, a.URL, "does not answer", []string{a.Error}, remedy))
		case a.Status != 200: // OK
			found = append(found, finding.New(severity, a.URL, fmt.Sprintf("answers with status %d", a.Status), lines(a.Body), remedy))
		}
	}
	return found
}

// loopbackFailures returns the errors of the agent's ports if every connection to 127.0.0.1 failed, on more than one port or without being refused.
// Otherwise, the fault is in a port, not in the path to it.
func (f *Facts) loopbackFailures() (failed []string) {
	ports, reached := map[string]bool{}, true
	for _, a := range f.Answers {
		rest, is := strings.CutPrefix(a.URL, "http://127.0.0.1:")
		switch {
		case !is || a.URL == kubeProxyMode:
			continue
		case a.Error == "":
			return nil
		}
		port, _, _ := strings.Cut(rest, "/")
		ports[port], reached = true, reached && strings.Contains(a.Error, "refused")
		failed = append(failed, a.Error)
	}
	if len(ports) == 1 && reached {
		return nil
	}
	return failed
}

func lines(text string) []string {
	if text = strings.TrimSpace(text); text == "" {
		return nil
	}
	return examples(strings.Split(text, "\n"))
}

// checkConflicts finds objects of other programs that block the agent's objects.
func checkConflicts(f Facts) []finding.Finding {
	if f.View == nil {
		return nil
	}
	var found []finding.Finding
	var foreign, servers, removals []string
	for _, o := range f.View.Agent.Foreign {
		foreign = append(foreign, o.Server+" instead of Service "+o.Service)
		servers = append(servers, "ipvsadm -D "+o.Server)
	}
	if len(foreign) > 0 {
		found = append(found, finding.New(finding.Warning, "virtual servers", "another program's virtual servers use Service addresses; the Services are not served there",
			examples(foreign), "give the Services other addresses or, if nothing needs these virtual servers, "+run(servers)))
	}
	left := f.View.Agent.Leftovers
	for _, object := range left {
		if server, is := strings.CutPrefix(object, "virtual server "); is {
			removals = append(removals, "ipvsadm -D "+server)
		} else {
			addr, _ := netip.ParseAddr(strings.TrimPrefix(object, "address "))
			removals = append(removals, "ip addr del "+kernel.BoundAddress{Addr: addr}.String())
		}
	}
	if len(left) > 0 {
		found = append(found, finding.New(finding.Warning, "addresses", "another program added virtual servers, or addresses on kube-ipvs0, that no Service uses",
			examples(left), "if nothing needs them, "+run(removals)))
	}
	return found
}

// run formats commands for a remedy, so that Finding.Commands can extract them.
func run(commands []string) string {
	return "run `" + strings.Join(commands[:min(len(commands), shown)], " && ") + "`"
}

func checkDrift(f Facts) []finding.Finding {
	if f.View == nil || f.View.Agent.LastDrift == nil || f.Now.Sub(*f.View.Agent.LastDrift) > driftWithin {
		return nil
	}
	last := f.Now.Sub(*f.View.Agent.LastDrift).Round(time.Second)
	return finding.One(finding.Warning, "drift", "another program changes the agent's objects; the agent repairs them",
		append([]string{fmt.Sprintf("%s since the agent started, the last one %s ago", number(f.View.Agent.Drift, "repair"), last)}, drifts(f)...),
		"stop the program that changes them")
}

// drifts describes each kind of drift: the changed objects, the time of the first and last repair, and the count.
func drifts(f Facts) []string {
	var all []string
	for _, d := range f.View.Agent.Drifts {
		all = append(all, fmt.Sprintf("%s: %d %s, found by %s, the first %s ago, the last %s ago: %s", d.Part, d.Count, d.Kind, number(d.Audits, "audit"),
			f.Now.Sub(d.First).Round(time.Second), f.Now.Sub(d.Last).Round(time.Second), strings.Join(d.What, "; ")))
	}
	return examples(all)
}

func number(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// checkServices reports the problems of individual Services. view.Findings reports the node's problems.
func checkServices(f Facts) []finding.Finding {
	if f.View == nil {
		return nil
	}
	problems := f.View.OtherProblems()
	if len(problems) == 0 {
		return nil
	}
	return finding.One(finding.Warning, "Services", number(len(problems), "problem"), examples(problems),
		"`kube-ipvs status` lists all problems with their remedies")
}
