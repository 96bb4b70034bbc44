package watch

import (
	"fmt"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

const (
	// maxProblems limits the Problems of one object or file: a thousand bad endpoints are one mistake, and each Problem may
	// become an Event.
	maxProblems = 16
	// Limits for the parts of a Problem that repeat text from the object, in bytes.
	maxValue, maxField, maxReason = 64, 200, 500
)

// problems collects the Problems of one object or file.
type problems struct {
	object  model.ObjectRef
	service model.ServiceID
	// origin is the position of the object in a manifest ("web.yaml, document 2, line 14"); empty for objects from the API server.
	origin string
	list   []model.Problem
	more   int
}

// add records a wrong value of a field. The reason says what is valid.
func (p *problems) add(field, value, format string, args ...any) {
	p.addWithRemedy(field, value, fmt.Sprintf(format, args...), "")
}

// addWithRemedy is add for a reason that does not imply the remedy.
func (p *problems) addWithRemedy(field, value, reason, remedy string) {
	if len(p.list) == maxProblems {
		p.more++
		return
	}
	p.list = append(p.list, model.Problem{
		Object: p.object, Service: p.service, Field: clip(field, maxField), Value: clip(value, maxValue),
		Reason: clip(reason, maxReason), Remedy: clip(remedy, maxReason), Location: p.origin,
	})
}

// done returns the Problems; nil if there are none.
func (p *problems) done() []model.Problem {
	if p.more == 0 {
		return p.list
	}
	return append(p.list, model.Problem{
		Object: p.object, Service: p.service, Reason: fmt.Sprintf("%d more problems", p.more), Location: p.origin,
	})
}

// clip shortens text from an object and makes it valid UTF-8, as the API requires in an Event.
func clip(s string, most int) string {
	if len(s) > most {
		s = s[:most] + "..."
	}
	return strings.ToValidUTF8(s, "?")
}
