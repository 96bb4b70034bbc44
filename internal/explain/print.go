package explain

import (
	"fmt"
	"io"
	"strings"
)

var headlines = map[Verdict]string{
	Passes:    "works",
	Stops:     "does not work",
	Depends:   "works for some clients only",
	Differs:   "works, but differs from the wanted state",
	NoService: "no Service on this node has this address",
	Unknown:   "unknown",
}

// Print writes an explanation as text: the verdict first, then the reasons, then the path step by step.
func Print(w io.Writer, e Explanation) {
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
	fmt.Fprintf(w, "%s: %s\n", subject, headlines[e.Verdict])
	for _, r := range e.Reasons {
		fmt.Fprintf(w, "  ! %s\n", r)
	}
	way := "the first packet of a new connection"
	if e.Connection != "" {
		way = "the packets of the connection from " + e.Connection
	}
	fmt.Fprintf(w, "\nPath of %s:\n", way)
	for i, s := range e.Steps {
		fmt.Fprintf(w, "%3d. %s: %s%s\n       %s\n", i+1, s.At, marks[s.Verdict], s.Message, s.Object)
	}
	if len(e.Endpoints) == 0 {
		return
	}
	fmt.Fprintln(w, "\nEligible endpoints:")
	for _, o := range e.Endpoints {
		fmt.Fprintf(w, "  %s weight %d%s; source address: %s\n", o.Address, o.Weight, location(o), o.Source)
	}
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
