package telemetry

import (
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

func noticeOf(namespace string, n int) notice {
	id := model.ServiceID{Namespace: namespace, Name: fmt.Sprint("svc-", n)}
	return notice{topic: aboutService, problem: model.Problem{Object: id.Ref(), Service: id}}
}

// A notice is never dropped because of another namespace, and waits for at most one notice from each other
// namespace.
func TestTenantsDoNotCrowdOutEachOther(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const most = 20
		q := newFairQueue(most)
		crowd := rapid.IntRange(0, 3*most).Draw(t, "notices of the crowd before")
		for i := range crowd {
			q.add(noticeOf("crowd", i))
		}
		others := rapid.IntRange(1, 4).Draw(t, "other namespaces")
		for i := range others {
			if rapid.Bool().Draw(t, "one notice is posted in between") {
				q.take()
			}
			q.add(noticeOf(fmt.Sprint("tenant-", i), i))
		}
		for i := range rapid.IntRange(0, 3*most).Draw(t, "notices of the crowd after") {
			q.add(noticeOf("crowd", crowd+i))
		}
		if q.len() > most || q.len() != len(q.queued) {
			t.Errorf("%d notices in the queue, want at most %d", q.len(), most)
		}
		seen := map[string]int{}
		for i := 1; ; i++ {
			n, ok := q.take()
			if !ok {
				break
			}
			if _, again := seen[lane(n)]; !again {
				seen[lane(n)] = i
			}
		}
		for i := range others {
			name := fmt.Sprint("tenant-", i)
			if at := seen[name]; at > others+1 {
				t.Errorf("the notice of %s was sent too late, as number %d: %v", name, at, seen)
			}
		}
		if len(q.lanes)+len(q.turns)+q.len() > 0 {
			t.Errorf("an empty queue contains %v", q)
		}
	})
}

func TestFairQueueKeepsOrderAndDropsTheNewest(t *testing.T) {
	q := newFairQueue(3)
	for i := range 5 {
		if kept := q.add(noticeOf("a", i)); kept != (i < 3) {
			t.Errorf("add returned %t for notice %d", kept, i)
		}
	}
	for i := range 3 {
		if n, ok := q.take(); !ok || n != noticeOf("a", i) {
			t.Errorf("notice %d is %v", i, n)
		}
	}
}
