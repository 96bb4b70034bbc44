package model

import (
	"cmp"
	"fmt"
)

// Problem is a mistake in one object that only the object's owner can fix. It does not affect other objects.
type Problem struct {
	Object ObjectRef
	// Service is set if the problem concerns a Service or its EndpointSlices.
	Service      ServiceID
	Field, Value string
	// Reason describes the mistake and its consequence. Remedy is empty if the reason implies it ("must be between 1
	// and 65535").
	Reason, Remedy string
	// Location is the position in a manifest ("web.yaml, document 2, line 14"), or empty for objects from the API
	// server.
	Location string
}

// String formats the problem as `Service default/web: spec.ports[0].port "70000": reason; remedy (location)`, omitting
// empty parts.
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
