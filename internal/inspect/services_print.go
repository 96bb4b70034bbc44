package inspect

import (
	"cmp"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// PrintServices writes a line for each frontend.
func PrintServices(w io.Writer, list ServiceList, form Table) error {
	t := newTable("NAMESPACE", "NAME", "PORT", "KIND", "ADDRESS", "SCHEDULER", "AFFINITY", "ENDPOINTS", "ACTIVE", "INACTIVE", "STATE")
	if form.Wide {
		t.add("POLICY", "DRAINING", "PROBLEMS")
	}
	for _, s := range list.Items {
		for _, f := range s.Frontends {
			row := []string{
				s.Namespace, s.Name, f.Port, string(f.Kind), addressOf(f), f.Scheduler, affinity(f), endpointCount(f),
				active(f.Connections), inactive(f.Connections), string(f.State),
			}
			if form.Wide {
				row = append(row, f.Policy, strconv.Itoa(count(f, view.Draining)), strconv.Itoa(len(s.Problems)))
			}
			t.row(row...)
		}
		if len(s.Frontends) == 0 {
			t.row(s.Namespace, s.Name, "", "", "", "", "", "", "", "", "NotServed")
		}
	}
	return t.writeAs(w, form)
}

// PrintNames writes the names of Services in the form that other commands accept.
func PrintNames(w io.Writer, list ServiceList) error {
	for _, s := range list.Items {
		if s.Name == "" { // without an agent
			continue
		}
		if _, err := fmt.Fprintln(w, s.ID()); err != nil {
			return err
		}
	}
	return nil
}

func addressOf(f view.Frontend) string { return f.Address.String() + "/" + f.Protocol }

func affinity(f view.Frontend) string {
	if f.Affinity == 0 {
		return "none"
	}
	return fmt.Sprintf("%ds", f.Affinity)
}

func endpointCount(f view.Frontend) string {
	taking := 0
	for _, e := range f.Endpoints {
		if takesConnections(e) {
			taking++
		}
	}
	return fmt.Sprintf("%d/%d", taking, len(f.Endpoints))
}

func count(f view.Frontend, state view.EndpointState) int {
	n := 0
	for _, e := range f.Endpoints {
		if e.State == state {
			n++
		}
	}
	return n
}

func active(c *view.Connections) string {
	if c == nil {
		return ""
	}
	return strconv.FormatUint(c.Active, 10)
}

func inactive(c *view.Connections) string {
	if c == nil {
		return ""
	}
	return strconv.FormatUint(c.Inactive, 10)
}

// PrintService writes all details of a Service.
func PrintService(w io.Writer, s view.Service) error {
	fmt.Fprintf(w, "Service %s\n", finding.Printable(cmp.Or(s.ID(), "unknown")))
	for _, p := range s.Problems {
		fmt.Fprintf(w, "  ! %s\n", finding.Printable(p))
	}
	for _, f := range s.Frontends {
		if err := printFrontend(w, f); err != nil {
			return err
		}
	}
	return nil
}

func printFrontend(w io.Writer, f view.Frontend) error {
	title := fmt.Sprintf("%s %s", f.Kind, addressOf(f))
	if f.Port != "" {
		title += fmt.Sprintf(" (port %s)", f.Port)
	}
	title += ": " + string(f.State)
	if f.Reason != "" {
		title += fmt.Sprintf(" (%s)", f.Reason)
	}
	fmt.Fprintf(w, "\n%s\n", finding.Printable(title))
	if err := printSettings(w, f); err != nil || len(f.Endpoints) == 0 {
		return err
	}
	t := newTable("  ENDPOINT", "POD", "NODE", "ZONE", "STATE", "SINCE", "WEIGHT", "ACTIVE", "INACTIVE")
	for _, e := range f.Endpoints {
		since := ""
		if e.Since != nil {
			since = e.Since.UTC().Format(timeFormat)
		}
		t.row("  "+e.Address.String(), e.Pod, e.Node, e.Zone, string(e.State), since, weight(e), active(e.Connections), inactive(e.Connections))
	}
	return t.write(w)
}

const timeFormat = "2006-01-02T15:04:05Z"

func printSettings(w io.Writer, f view.Frontend) error {
	t := newTable()
	for _, s := range f.Settings {
		t.row("  "+s.Name, s.Value, "from: "+s.From)
	}
	if f.Policy != "" {
		t.row("  traffic policy", f.Policy, "from: "+policyField(f.Kind))
	}
	if len(f.SourceRanges) > 0 {
		var ranges []string
		for _, r := range f.SourceRanges {
			ranges = append(ranges, r.String())
		}
		t.row("  source ranges", strings.Join(ranges, ","), "from: spec.loadBalancerSourceRanges")
	}
	return t.write(w)
}

func policyField(k view.Kind) string {
	if k == view.ClusterIP {
		return "spec.internalTrafficPolicy"
	}
	return "spec.externalTrafficPolicy"
}

// weight returns the kernel's weight, and the wanted weight if it differs.
func weight(e view.Endpoint) string {
	have, wanted := "", ""
	if e.Weight != nil {
		have = strconv.FormatUint(uint64(*e.Weight), 10)
	}
	if e.Wanted != nil {
		wanted = strconv.FormatUint(uint64(*e.Wanted), 10)
	}
	if have == wanted || wanted == "" {
		return have
	}
	return cmp.Or(have, "0") + " of " + wanted
}
