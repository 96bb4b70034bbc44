package watch

import (
	"fmt"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

const (
	// maxProblems limits the number of Problems of one object or file: a thousand bad endpoints are one mistake, and each
	// Problem may become an Event.
	maxProblems = 16
	// These limits, in bytes, apply to the parts of a Problem that repeat text from the object.
	maxValue, maxField, maxReason = 64, 200, 500
)

// Problems collects the Problems of one object or file.
type Problems struct {
	Object  model.ObjectRef
	Service model.ServiceID
	// Origin is the position of the object in a manifest ("web.yaml, document 2, line 14"); empty for objects from the API server.
	Origin string
	list   []model.Problem
	more   int
}

// Add records an invalid value of a field. The reason describes the valid values.
func (p *Problems) Add(field, value, format string, args ...any) {
	p.AddWithRemedy(field, value, fmt.Sprintf(format, args...), "")
}

// AddWithRemedy is like Add, for a reason that does not imply the remedy.
func (p *Problems) AddWithRemedy(field, value, reason, remedy string) {
	if len(p.list) == maxProblems {
		p.more++
		return
	}
	p.list = append(p.list, model.Problem{
		Object: p.Object, Service: p.Service, Field: clip(field, maxField), Value: clip(value, maxValue),
		Reason: clip(reason, maxReason), Remedy: clip(remedy, maxReason), Location: p.Origin,
	})
}

// Done returns the Problems; nil if there are none.
func (p *Problems) Done() []model.Problem {
	if p.more == 0 {
		return p.list
	}
	return append(p.list, model.Problem{
		Object: p.Object, Service: p.Service, Reason: fmt.Sprintf("%d more problems", p.more), Location: p.Origin,
	})
}

// clip shortens text from an object and makes it valid UTF-8, as the API requires in an Event.
func clip(s string, most int) string {
	if len(s) > most {
		s = s[:most] + "..."
	}
	return strings.ToValidUTF8(s, "?")
}
