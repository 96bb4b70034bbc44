package explain

import (
	"fmt"
	"io"
	"strings"
)

var headlines = map[Verdict]string{
	Passes:  "works",
	Stops:   "does not work",
	Depends: "works, but not for everybody or not as the agent wants it",
	Unknown: "cannot be said",
}

// Print writes an explanation for people: the answer first, then why, then the way step by step.
func Print(w io.Writer, e Explanation) {
	subject := fmt.Sprintf("%s/%s", e.Address, e.Protocol)
	if e.Service != "" {
		subject += fmt.Sprintf(" (%s of Service %s)", e.Kind, e.Service)
	}
	if e.From != "" {
		subject += " from " + e.From
	}
	fmt.Fprintf(w, "%s: %s\n", subject, headlines[e.Verdict])
	for _, r := range e.Reasons {
		fmt.Fprintf(w, "  ! %s\n", r)
	}
	way := "a new connection's first packet"
	if e.Connection != "" {
		way = "the packets of the connection from " + e.Connection
	}
	fmt.Fprintf(w, "\nThe way of %s:\n", way)
	for i, s := range e.Steps {
		fmt.Fprintf(w, "%3d. %s: %s%s\n       %s\n", i+1, s.At, marks[s.Verdict], s.Says, s.Object)
	}
	if len(e.Endpoints) == 0 {
		return
	}
	fmt.Fprintln(w, "\nEndpoints it may get:")
	for _, o := range e.Endpoints {
		fmt.Fprintf(w, "  %s weight %d%s; it sees the address of %s\n", o.Address, o.Weight, whereabouts(o), o.Source)
	}
}

var marks = map[Verdict]string{Stops: "STOPS: ", Depends: "DEPENDS: ", Unknown: "UNKNOWN: "}

func whereabouts(o Endpoint) string {
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
