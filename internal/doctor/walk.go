package doctor

import (
	"fmt"

	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/finding"
)

// Walk is a path and the outcome of a new connection on it.
type Walk struct {
	Path
	Verdict explain.Verdict
	Causes  []explain.Cause
	// Connected is true if doctor tried to open a connection. Failure is its error, or "" if it succeeded.
	Connected bool
	Failure   string
}

// String names the path.
func (w Walk) String() string {
	text := fmt.Sprintf("%s at %s/%s from %s", w.Service, w.To.Addr, w.To.Protocol, w.Sender)
	if w.Sender != fromNode {
		text += " (" + w.From.String() + ")"
	}
	if w.Failure != "" {
		text += ": " + w.Failure
	}
	return text
}

// judge returns the problem of a path, or "" if packets arrive. If explain has no clear verdict, judge uses the result
// of a real connection, which proves nothing about later packets.
func (e effect) judge(why string) (finding.Severity, string) {
	failed, severity := e.Failure != "", finding.Warning
	if failed && e.Vital {
		severity = finding.Broken
	}
	switch e.verdict {
	case explain.Partly:
		return e.partly(), "some connections to Services fail: " + why
	case explain.Stops, explain.NoService:
		switch {
		case e.Connected && !failed && !e.later:
			return finding.Warning, "explain reports that packets do not arrive, but a connection succeeded: " + why
		case e.Sender == fromOutside:
			return finding.Warning, "clients outside this node do not reach Services: " + why
		}
		return finding.Broken, "packets to Services do not arrive: " + why
	case explain.Differs:
		if failed {
			return severity, "connections fail, and the kernel differs from the wanted state: " + why
		}
		return severity, "the kernel differs from the wanted state: " + why
	case explain.Passes:
		if failed {
			return severity, unexplained
		}
		return "", ""
	}
	return e.unclear(why, severity)
}

// unclear judges a path for which explain has no clear verdict.
func (e effect) unclear(why string, severity finding.Severity) (finding.Severity, string) {
	switch {
	case e.Failure != "":
		return severity, "connections fail, and this may be the reason: " + why
	case e.Connected && !e.later:
		return "", ""
	}
	return severity, "doctor cannot tell whether packets arrive: " + why
}

// partly returns the severity if packets reach only some endpoints. A connection that succeeds is no contradiction.
func (w Walk) partly() finding.Severity {
	if w.Sender == fromOutside || w.Connected && w.Failure == "" {
		return finding.Warning
	}
	return finding.Broken
}

func (w Walk) remedy() string {
	command := fmt.Sprintf("kube-ipvs explain %s/%s", w.To.Addr, w.To.Protocol)
	if w.Failure != "" && w.Verdict == explain.Passes {
		return "`" + command + "` lists the endpoints: connect to them directly; if that fails, too, check the pods, the network policies and the pod network"
	}
	return "`" + command + " --from " + w.From.String() + "` shows every step; change the rule or object that it names"
}
