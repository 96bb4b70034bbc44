package explain

import (
	"fmt"
	"slices"
)

func (e *explaining) fail(at, object, says string) {
	e.step(at, object, says, Stops)
	e.reason(Stops, nil, "%s", says)
}

// absent records that an object of the agent is missing. This is a failure only if an agent is known to be active.
// Otherwise, another proxy may serve the Service without the object.
func (e *explaining) absent(at, object, says string) {
	if e.active() {
		e.fail(at, object, says)
		return
	}
	if !e.inactive() { // unreadable ipsets do not prove that no agent is active
		e.couldNotRead(Sets)
	}
	e.step(at, object, says, Unknown)
	e.conclude(Unknown)
}

// reason adds a reason for a verdict, or a note if the verdict is Passes. rules are the foreign rules that cause it.
func (e *explaining) reason(v Verdict, rules []string, format string, args ...any) {
	e.because(Cause{Text: fmt.Sprintf(format, args...), Verdict: v, Rules: rules})
}

func (e *explaining) because(c Cause) {
	c.Rules = slices.DeleteFunc(slices.Clone(c.Rules), func(rule string) bool { return rule == "" })
	e.conclude(c.Verdict)
	if !slices.Contains(e.out.Reasons, c.Text) {
		e.out.Reasons, e.out.Causes = append(e.out.Reasons, c.Text), append(e.out.Causes, c)
	}
}

// conclude adds a verdict to those that verdict chooses from.
func (e *explaining) conclude(v Verdict) {
	if e.verdicts == nil {
		e.verdicts = map[Verdict]bool{}
	}
	e.verdicts[v] = true
}

func (e *explaining) mayStop(w *walk, what string, later bool) {
	e.uncertain = append(e.uncertain, w.maybeStops...)
	for _, rule := range w.maybeStops {
		c := Cause{"this rule stops, or may stop, the packets of some clients: " + rule, Depends, w.foreignOf(rule), later}
		if w.opaque {
			c.Text, c.Verdict = fmt.Sprintf("this rule may stop %s; explain cannot evaluate all of its matches: %s", what, rule), Unclear
		}
		e.because(c)
	}
}
