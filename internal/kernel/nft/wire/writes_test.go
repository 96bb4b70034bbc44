package wire

import (
	"math"
	"testing"
)

func TestWrites(t *testing.T) {
	for name, c := range map[string]struct {
		own          []uint32
		after, until uint32
		only         bool
	}{
		"no change":                {nil, 7, 7, true},
		"ours":                     {[]uint32{9, 8}, 7, 9, true},
		"another program's":        {nil, 7, 8, false},
		"ours, then another's":     {[]uint32{8}, 7, 9, false},
		"another's, then ours":     {[]uint32{9}, 7, 9, false},
		"a later one of ours":      {[]uint32{8, 9}, 7, 8, true},
		"the number wraps":         {[]uint32{math.MaxUint32, 1, 2}, math.MaxUint32 - 1, 2, true},
		"wraps, and another's":     {[]uint32{math.MaxUint32, 2}, math.MaxUint32 - 1, 2, false},
		"too many since last time": {nil, 7, 7 + most + 1, false},
	} {
		w := NewWrites()
		for _, g := range c.own {
			w.add(g)
		}
		if only := w.Only(c.after, c.until); only != c.only {
			t.Errorf("%s: got %t", name, only)
		}
	}
	w := NewWrites()
	for g := range uint32(3 * most) {
		w.add(g)
	}
	if len(w.own) > most {
		t.Errorf("keeps %d generations", len(w.own))
	}
	if w.Only(3*most-1, 3*most-1); len(w.own) > 0 {
		t.Errorf("%d generations are not forgotten", len(w.own))
	}
}
