package journal

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func entry(t *rapid.T) *view.PastSync {
	texts := rapid.Map(rapid.SliceOfN(rapid.IntRange(0, 5000), 0, 40), func(lengths []int) (s view.Some[string]) {
		for _, n := range lengths {
			s.Items = append(s.Items, strings.Repeat("x", n))
		}
		return s
	})
	e := &view.PastSync{
		Time: noon, Kind: rapid.SampledFrom([]view.SyncKind{view.SyncFull, view.SyncIncremental, view.SyncRepair}).Draw(t, "kind"),
		Services: texts.Draw(t, "services"), Causes: []view.Cause{{Objects: texts.Draw(t, "objects")}},
	}
	if rapid.Bool().Draw(t, "fails") {
		e.Failures = view.Some[view.Failure]{Count: 1, Items: []view.Failure{{Operation: "x", Error: strings.Repeat("y", rapid.IntRange(0, 2*MaxBytes).Draw(t, "length"))}}}
	}
	return e
}

func TestBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := New()
		for range rapid.IntRange(0, 60).Draw(t, "entries") {
			e := entry(t)
			for range rapid.SampledFrom([]int{1, 1, 1, 500}).Draw(t, "copies") {
				one := *e
				r.Add(&one)
			}
			h, bytes := r.History(), 0
			for i, e := range h.Entries {
				bytes += Size(e)
				if e.ID != h.Dropped+i+1 {
					t.Fatalf("entry %d of %d has number %d, but %d entries were dropped", i, len(h.Entries), e.ID, h.Dropped)
				}
			}
			if len(h.Entries) > MaxEntries || bytes > MaxBytes || bytes != r.bytes {
				t.Fatalf("the ring has %d entries of %d bytes, but counts %d bytes", len(h.Entries), bytes, r.bytes)
			}
		}
	})
}

// Repeated failures or repairs are merged into one entry.
func TestRepetition(t *testing.T) {
	r := New()
	fails := func(after time.Duration) *view.PastSync {
		return &view.PastSync{Time: noon.Add(after), Kind: view.SyncAudit, Seconds: after.Seconds(), Error: "permission denied"}
	}
	r.Add(fails(0))
	before := r.History()
	r.Add(fails(time.Second))
	r.Add(fails(2 * time.Second))
	r.Add(&view.PastSync{Time: noon, Kind: view.SyncIncremental})
	r.Add(&view.PastSync{Time: noon, Kind: view.SyncIncremental})
	h := r.History()
	if len(h.Entries) != 3 || h.Entries[0].Repeated != 2 || !h.Entries[0].Until().Equal(noon.Add(2*time.Second)) || !h.Entries[0].Time.Equal(noon) {
		t.Errorf("got %d entries, the first is %+v", len(h.Entries), h.Entries[0])
	}
	if e := before.Entries[0]; e.Repeated != 0 || e.Last != nil {
		t.Errorf("an earlier list has changed: %+v", e)
	}
}

func TestText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringN(0, 2*maxText, -1).Draw(t, "text")
		got := Text(text)
		switch {
		case len(text) <= maxText && got != text:
			t.Fatalf("%q became %q", text, got)
		case len(got) > maxText, !utf8.ValidString(got), len(text) > maxText && !strings.HasPrefix(text, strings.TrimSuffix(got, "…")):
			t.Fatalf("%q became %q", text, got)
		}
	})
}
