package explain

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
)

var headlines = map[Verdict]string{
	Passes:    "works",
	Stops:     "does not work",
	Partly:    "works for some endpoints only",
	Unclear:   "may work; explain could not evaluate everything",
	Depends:   "works for some clients only",
	Differs:   "works, but differs from the wanted state",
	NoService: "no Service on this node has this address",
	Unknown:   "unknown",
}

const shownEndpoints = 5

// Print writes explanations as text: the verdict, the reasons, the deciding steps, and the endpoints. If all is true,
// it writes every step and every endpoint.
func Print(w io.Writer, answers []Explanation, all bool) {
	var before []Endpoint
	for i, e := range answers {
		switch {
		case !all:
			printShort(w, e, before)
			before = e.Endpoints
			continue
		case i > 0:
			fmt.Fprintln(w)
		}
		printAll(w, e)
	}
	if !all {
		fmt.Fprintln(w, "\nUse -v to see all steps.")
	}
}

// printShort writes the short output. before contains the endpoints of the previous explanation.
func printShort(w io.Writer, e Explanation, before []Endpoint) {
	printVerdict(w, e)
	for _, i := range e.deciding() {
		if s := e.Steps[i]; !e.named(s.Object) {
			writeLine(w, "  %d. %s: %s%s (%s)", i+1, s.At, marks[s.Verdict], s.Message, s.Object)
		}
	}
	if len(e.Endpoints) > 0 && slices.Equal(e.Endpoints, before) {
		fmt.Fprintln(w, "  -> the same endpoints")
		return
	}
	for i, o := range e.Endpoints {
		if i == shownEndpoints {
			fmt.Fprintf(w, "  -> and %d more\n", len(e.Endpoints)-i)
			break
		}
		writeLine(w, "  -> %s", o.text())
	}
}

// deciding returns the indexes of the deciding steps: the steps that stop or may stop the packet or, if there are none,
// the step that selects the endpoint.
func (e Explanation) deciding() []int {
	var deciding []int
	for i, s := range e.Steps {
		if s.Verdict != Passes {
			deciding = append(deciding, i)
		}
	}
	for _, at := range []string{"affinity", "connection", "ipvs", "balancing"} {
		if len(deciding) > 0 {
			break
		}
		i := slices.IndexFunc(e.Steps, func(s Step) bool { return s.At == at })
		if i >= 0 && (at != "connection" || e.Connection != "") {
			deciding = append(deciding, i)
		}
	}
	return deciding
}

func (e Explanation) named(object string) bool {
	return slices.ContainsFunc(e.Reasons, func(r string) bool { return strings.Contains(r, object) })
}

func printVerdict(w io.Writer, e Explanation) {
	subject := fmt.Sprintf("%s/%s", e.Address, e.Protocol)
	switch {
	case e.Owner != "":
		subject += fmt.Sprintf(" (claimed by Service %s, belongs to Service %s)", e.Service, e.Owner)
	case e.Service != "":
		subject += fmt.Sprintf(" (%s of Service %s)", e.Kind, e.Service)
	}
	if e.From != "" {
		subject += " from " + e.From
	}
	writeLine(w, "%s: %s", subject, headlines[e.Verdict])
	for _, r := range e.Reasons {
		writeLine(w, "  ! %s", r)
	}
}

func printAll(w io.Writer, e Explanation) {
	printVerdict(w, e)
	way := "the first packet of a new connection"
	if e.Connection != "" {
		way = "the packets of the connection from " + e.Connection
	}
	fmt.Fprintf(w, "\nPath of %s:\n", way)
	for i, s := range e.Steps {
		writeLine(w, "%3d. %s: %s%s", i+1, s.At, marks[s.Verdict], s.Message)
		writeLine(w, "       %s", s.Object)
	}
	if len(e.Endpoints) == 0 {
		return
	}
	fmt.Fprintln(w, "\nEligible endpoints:")
	for _, o := range e.Endpoints {
		writeLine(w, "  %s", o.text())
	}
}

// writeLine writes one line, whatever names and rules of other programs, or the texts of errors, contain.
func writeLine(w io.Writer, format string, args ...any) {
	fmt.Fprintln(w, finding.Printable(strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", "; ")))
}

func (o Endpoint) text() string {
	return fmt.Sprintf("%s weight %d%s; source address: %s", o.Address, o.Weight, location(o), o.Source)
}

var marks = map[Verdict]string{Stops: "STOPS: ", Depends: "DEPENDS: ", Unknown: "UNKNOWN: "}

func location(o Endpoint) string {
	var parts []string
	if o.Pod != "" {
		parts = append(parts, "pod "+o.Pod)
	}
	if o.Node != "" {
		parts = append(parts, "node "+o.Node)
	}
	if len(parts) == 0 {
		return ""
	}
	return ", " + strings.Join(parts, ", ")
}
