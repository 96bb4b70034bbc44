// Package journal remembers past syncs. Its memory is bounded. When it is full, it drops the oldest entries.
//
// May import: view. It has no clock.
package journal

import (
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// The bounds of a Ring.
const (
	MaxEntries = 1000
	MaxBytes   = 1 << 20
)

// maxText is the maximum length of each text of an entry, in bytes.
const maxText = 512

// Ring contains the latest entries.
type Ring struct {
	entries    []*view.PastSync
	bytes, ids int
	dropped    int
}

// New returns an empty ring.
func New() *Ring { return &Ring{} }

// Add adds an entry, which must not change later. If the entry repeats the previous failure or repair, Add merges the
// two.
func (r *Ring) Add(e *view.PastSync) {
	if last := len(r.entries) - 1; last >= 0 && repeats(r.entries[last], e) {
		merged := *r.entries[last]
		merged.Repeated++
		merged.Last = &e.Time
		r.entries[last] = &merged
		return
	}
	r.ids++
	e.ID = r.ids
	r.entries = append(r.entries, e)
	r.bytes += Size(e)
	gone := 0
	for gone < len(r.entries) && (len(r.entries)-gone > MaxEntries || r.bytes > MaxBytes) {
		r.bytes -= Size(r.entries[gone])
		gone++
	}
	r.entries = slices.Delete(r.entries, 0, gone)
	r.dropped += gone
}

// History returns the entries, which are immutable.
func (r *Ring) History() *view.History {
	return &view.History{Dropped: r.dropped, Entries: append([]*view.PastSync{}, r.entries...)}
}

func repeats(before, now *view.PastSync) bool {
	if !now.Failed() && now.Kind != view.SyncRepair && now.Waiting == "" {
		return false
	}
	a, b := *before, *now
	for _, e := range []*view.PastSync{&a, &b} {
		e.ID, e.Time, e.Repeated, e.Last, e.Seconds, e.Stages = 0, time.Time{}, 0, nil, 0, view.StageSeconds{}
	}
	return reflect.DeepEqual(a, b)
}

// Size returns the approximate memory use of an entry, in bytes.
func Size(e *view.PastSync) int {
	n := sizeOf[view.PastSync](1) + sizeOf[time.Time](1) + len(e.Kind) + len(e.Error) + len(e.Waiting)
	for _, list := range [][]string{e.Services.Items, e.Drift.Items, e.Problems.Items, e.Resolved.Items} {
		n += sizeOfTexts(list)
	}
	n += sizeOf[view.Cause](len(e.Causes))
	for _, c := range e.Causes {
		n += sizeOfTexts(c.Objects.Items)
	}
	n += sizeOf[view.Failure](len(e.Failures.Items))
	for _, f := range e.Failures.Items {
		n += len(f.Operation) + len(f.Error)
	}
	return n + sizeOf[view.OperationCount](len(e.Operations))
}

func sizeOfTexts(list []string) int {
	n := sizeOf[string](len(list))
	for _, text := range list {
		n += len(text)
	}
	return n
}

func sizeOf[T any](count int) int { return count * int(reflect.TypeFor[T]().Size()) }

// Text returns at most the first maxText bytes of a text. A truncated result shares no memory with the original.
func Text(text string) string {
	if len(text) <= maxText {
		return text
	}
	const more = "…"
	end := maxText - len(more)
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return strings.Clone(text[:end]) + more
}
