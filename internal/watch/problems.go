package watch

import (
	"fmt"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

const (
	// maxProblems bounds what one object or file can say: a thousand bad endpoints are one mistake, and each Problem may
	// become an Event.
	maxProblems = 16
	// These bound how much of a wrong object is repeated, in bytes.
	maxValue, maxField, maxMessage = 64, 200, 500
)

// problems collects what is wrong with one object or file.
type problems struct {
	object  string
	service model.ServiceID
	// origin is where the object was written ("web.yaml, document 2, line 14"); empty for the API server's objects.
	origin string
	list   []model.Problem
	more   int
}

// add notes that a field of the object holds a wrong value. The message says what would be right.
func (p *problems) add(field, value, format string, args ...any) {
	if len(p.list) == maxProblems {
		p.more++
		return
	}
	p.list = append(p.list, model.Problem{
		Object: p.object, Service: p.service, Field: clip(field, maxField), Value: clip(value, maxValue),
		Message: p.located(clip(fmt.Sprintf(format, args...), maxMessage)),
	})
}

// done returns the problems; nil if there are none.
func (p *problems) done() []model.Problem {
	if p.more == 0 {
		return p.list
	}
	return append(p.list, model.Problem{
		Object: p.object, Service: p.service, Message: p.located(fmt.Sprintf("%d more problems like these", p.more)),
	})
}

func (p *problems) located(message string) string {
	if p.origin == "" {
		return message
	}
	return message + " (" + p.origin + ")"
}

// clip shortens what came from a user, and makes it a string that the API accepts in an Event.
func clip(s string, most int) string {
	if len(s) > most {
		s = s[:most] + "..."
	}
	return strings.ToValidUTF8(s, "?")
}
