package telemetry

import "slices"

// fairQueue contains the notices to be posted, without duplicates. The namespaces and the node take turns, so that
// the Events of one tenant never delay or displace the Events of another tenant. Within a namespace, notices stay
// in order of arrival.
type fairQueue struct {
	most int
	// lanes contains the notices by namespace, with "" for the node. No lane is empty.
	lanes map[string][]notice
	// turns lists the namespaces with notices, in the order of their turns.
	turns  []string
	queued map[notice]struct{}
}

func newFairQueue(most int) *fairQueue {
	return &fairQueue{most: most, lanes: map[string][]notice{}, queued: map[notice]struct{}{}}
}

func lane(n notice) string { return n.problem.Service.Namespace }

func (q *fairQueue) has(n notice) bool {
	_, ok := q.queued[n]
	return ok
}

func (q *fairQueue) len() int { return len(q.queued) }

// add appends a notice to its lane. If the queue is full, it drops the newest notice of the longest lane, which may
// be n, and returns false.
func (q *fairQueue) add(n notice) (roomForAll bool) {
	name := lane(n)
	if q.lanes[name] == nil {
		q.turns = append(q.turns, name)
	}
	q.lanes[name] = append(q.lanes[name], n)
	q.queued[n] = struct{}{}
	if len(q.queued) <= q.most {
		return true
	}
	longest := slices.MaxFunc(q.turns, func(a, b string) int { return len(q.lanes[a]) - len(q.lanes[b]) })
	q.remove(q.lanes[longest][len(q.lanes[longest])-1])
	return false
}

func (q *fairQueue) remove(n notice) {
	name := lane(n)
	delete(q.queued, n)
	if q.lanes[name] = slices.DeleteFunc(q.lanes[name], func(other notice) bool { return other == n }); len(q.lanes[name]) == 0 {
		delete(q.lanes, name)
		q.turns = slices.DeleteFunc(q.turns, func(other string) bool { return other == name })
	}
}

func (q *fairQueue) take() (notice, bool) {
	if len(q.turns) == 0 {
		return notice{}, false
	}
	name := q.turns[0]
	n := q.lanes[name][0]
	q.turns = append(q.turns[1:], name)
	q.remove(n)
	return n, true
}
