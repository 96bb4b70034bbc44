package model

import (
	"cmp"
	"fmt"
)

// Problem is a mistake in one object that only its owner can fix. All other objects are served regardless.
type Problem struct {
	Object ObjectRef
	// Service is set if the problem belongs to a Service, including problems of its EndpointSlices.
	Service ServiceID
	// Field is the path of the wrong field, and Value its value.
	Field, Value string
	// Reason describes the mistake and its consequence. Remedy is the fix; it is empty if the reason implies it ("must be
	// between 1 and 65535").
	Reason, Remedy string
	// Location is the position of the object in a manifest ("web.yaml, document 2, line 14"); empty for the API server's objects.
	Location string
}

// String is `Service default/web: spec.ports[0].port "70000": reason; remedy (location)`, without the parts that are empty.
func (p Problem) String() string {
	s := p.Object.String()
	if p.Field != "" {
		s += ": " + p.Field
	}
	if p.Value != "" {
		s += fmt.Sprintf(" %q", p.Value)
	}
	s += ": " + p.Reason
	if p.Remedy != "" {
		s += "; " + p.Remedy
	}
	if p.Location != "" {
		s += " (" + p.Location + ")"
	}
	return s
}

// Compare orders problems by object, field and text.
func (p Problem) Compare(o Problem) int {
	return cmp.Or(p.Object.Compare(o.Object), cmp.Compare(p.Field, o.Field), cmp.Compare(p.Value, o.Value),
		cmp.Compare(p.Reason, o.Reason), cmp.Compare(p.Remedy, o.Remedy), cmp.Compare(p.Location, o.Location))
}
