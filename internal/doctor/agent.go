package doctor

import (
	"fmt"
	"net/netip"
	"strings"
	"time"

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

func checkAgent(f Facts) []finding.Finding { return view.Findings(f.View, f.Silence) }

// checkPorts finds ports of a running agent that do not respond or respond with an error.
func checkPorts(f Facts) []finding.Finding {
	if f.View == nil {
		return nil
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
