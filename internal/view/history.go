package view

import (
	"slices"
	"time"
)

// History is what the agent remembers about past syncs.
type History struct {
	// Dropped is the number of entries that were removed to make room.
	Dropped int `json:"dropped"`
	// Entries describe the syncs that failed or that changed or repaired something, oldest first. They are immutable.
	Entries []*PastSync `json:"entries"`
}

// News returns the entries that are not in an earlier list, and those that have been repeated since.
func (h *History) News(before []*PastSync) []*PastSync {
	return slices.DeleteFunc(slices.Clone(h.Entries), func(e *PastSync) bool {
		return slices.ContainsFunc(before, func(b *PastSync) bool { return b.ID == e.ID && b.Until().Equal(e.Until()) })
	})
}

// PastSync describes one sync, or consecutive syncs with the same failure or repair.
type PastSync struct {
	// ID counts the entries since the agent started.
	ID   int       `json:"id"`
	Time time.Time `json:"time"`
	// Repeated is the number of repetitions. Last is the time of the last repetition; nil if there were none.
	Repeated int        `json:"repeated,omitempty"`
	Last     *time.Time `json:"last,omitempty"`
	Kind     SyncKind   `json:"kind"`
	// Causes are the reasons for the sync. Changes by other programs are in Drift instead.
	Causes []Cause `json:"causes"`
	// Services are the Services that the sync compiled or wrote.
	Services Some[string] `json:"services"`
	// Operations counts the successful operations. Skipped counts the operations that must wait or that depend on a
	// failed operation.
	Operations []OperationCount `json:"operations"`
	Skipped    int              `json:"skipped,omitempty"`
	// Seconds is the duration of the sync. It does not include Waited.
	Seconds float64      `json:"seconds"`
	Stages  StageSeconds `json:"stages"`
	// Drift lists changes by other programs.
	Drift Some[string] `json:"drift"`
	// Failures are the failed operations, and Error is the sync's error. Waiting names the rules that are still
	// being written.
	Failures Some[Failure] `json:"failures"`
	Error    string        `json:"error,omitempty"`
	Waiting  string        `json:"waiting,omitempty"`
	// Problems are the new problems. Resolved are the problems that no longer exist.
	Problems Some[string] `json:"newProblems"`
	Resolved Some[string] `json:"resolvedProblems"`
}

// Failed reports whether the sync or one of its operations failed.
func (p *PastSync) Failed() bool { return p.Error != "" || p.Failures.Count > 0 }

// Until returns the start of the sync or, if it was repeated, of the last repetition.
func (p *PastSync) Until() time.Time {
	if p.Last != nil {
		return *p.Last
	}
	return p.Time
}

// Some contains the first items of a list, and the total number of items.
type Some[T any] struct {
	Count int `json:"count"`
	Items []T `json:"items"`
}

// Failure is an operation that failed.
type Failure struct {
	Operation string `json:"operation"`
	Error     string `json:"error"`
}

// SyncKind is a kind of sync.
type SyncKind string

// The kinds of sync.
const (
	SyncFull        SyncKind = "full"        // runs when the agent starts, and reads the whole kernel state
	SyncIncremental SyncKind = "incremental" // compares what a change affects
	SyncAudit       SyncKind = "audit"       // follows an audit that found no drift
	SyncRepair      SyncKind = "repair"      // follows an audit that found drift
)

// Cause is a reason for a sync.
type Cause struct {
	Reason  Reason       `json:"reason"`
	Objects Some[string] `json:"objects"`
}

// Reason is a kind of cause.
type Reason string

// The reasons for a sync.
const (
	ForStart       Reason = "start"       // the agent has started
	ForServices    Reason = "services"    // Services or their EndpointSlices have changed
	ForNodes       Reason = "nodes"       // Node objects have changed
	ForAPIServer   Reason = "apiServer"   // the API server's addresses or version have changed
	ForInvalid     Reason = "invalid"     // an object cannot be read, or can be read again
	ForSettings    Reason = "settings"    // the configuration has changed
	ForAddresses   Reason = "addresses"   // the node's addresses or networks have changed
	ForRetry       Reason = "retry"       // an earlier sync has failed
	ForRefused     Reason = "refused"     // objects that the kernel refused are tried again
	ForRemainder   Reason = "remainder"   // an earlier sync did not finish its work
	ForRules       Reason = "rules"       // writing rules failed after a sync
	ForDraining    Reason = "draining"    // the agent counts the connections of removed endpoints
	ForSlowStart   Reason = "slowStart"   // the weight of a new endpoint is rising
	ForConnections Reason = "connections" // stale tracked connections were deleted
)

// OperationCount counts the operations on one kind of object.
type OperationCount struct {
	Object string `json:"object"`
	// Plane is the part of the kernel that contains the object: ipvs, ipset, iptables, nftables, address, sysctl or conntrack.
	Plane   string `json:"plane"`
	Added   int    `json:"added"`
	Changed int    `json:"changed"`
	Removed int    `json:"removed"`
}

// StageSeconds are the durations of the stages. Waited is the time from the first change in the source to the start of the sync.
type StageSeconds struct {
	Waited    float64 `json:"waited"`
	Gather    float64 `json:"gather"`
	Bootstrap float64 `json:"bootstrap,omitempty"`
	Compile   float64 `json:"compile"`
	Plan      float64 `json:"plan"`
	Apply     float64 `json:"apply"`
}

// HistoryFilter selects entries. The zero value selects all.
type HistoryFilter struct {
	// Service is NAMESPACE/NAME. It also selects entries that list only some of their Services.
	Service string
	Since   time.Time
	// Repairs selects repairs, and Failed selects failures; together they select both.
	Repairs, Failed bool
	// Limit is the maximum number of entries, counted from the latest; 0 means no limit.
	Limit int
}

// Select returns the selected entries, oldest first.
func (f HistoryFilter) Select(entries []*PastSync) []*PastSync {
	selected := []*PastSync{}
	for _, e := range entries {
		if f.selects(e) {
			selected = append(selected, e)
		}
	}
	if f.Limit > 0 {
		selected = selected[max(0, len(selected)-f.Limit):]
	}
	return selected
}

func (f HistoryFilter) selects(e *PastSync) bool {
	s := e.Services
	return (f.Service == "" || slices.Contains(s.Items, f.Service) || len(s.Items) < s.Count) &&
		!e.Until().Before(f.Since) &&
		(!f.Repairs && !f.Failed || f.Repairs && e.Drift.Count > 0 || f.Failed && e.Failed())
}
