package live

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// TestKept: a result is repeated only if the read before it found the same generation, and only for some time. Each step is one audit.
func TestKept(t *testing.T) {
	synctest.Test(t, testKept)
}

func testKept(t *testing.T) {
	u := &unchanged{}
	k, content, failure := kept[int]{in: u, most: time.Minute}, 0, error(nil)
	step := func(what string, generation uint32, known, reads bool) {
		t.Helper()
		if u.now = generation; !known {
			u.now = 0
		}
		content++
		want := k.value
		if reads {
			want = content
		}
		if got, err := k.get(func() (int, error) { return content, failure }); got != want || !errors.Is(err, failure) {
			t.Errorf("%s: %d, %v, want %d", what, got, err, want)
		}
	}
	step("first", 1, true, true)
	step("it may be incomplete", 1, true, true)
	step("confirmed", 1, true, false)
	step("changed", 2, true, true)
	step("not confirmed", 2, true, true)
	step("confirmed", 2, true, false)
	step("unknown", 2, false, true)
	step("after an unknown one", 2, true, true)
	step("not confirmed", 2, true, true)
	time.Sleep(time.Minute - 1)
	step("confirmed", 2, true, false)
	time.Sleep(time.Nanosecond)
	step("too old", 2, true, true)
	step("still confirmed", 2, true, false)
	u.settled = true
	step("changed a while ago", 4, true, true)
	step("confirmed", 4, true, false)
	u.settled = false
	failure = errors.New("injected")
	step("failed", 3, true, true)
	failure = nil
	step("after a failure", 3, true, true)
	step("not confirmed", 3, true, true)
	step("confirmed", 3, true, false)
}

// TestKeptRules: while a program is in trouble, each audit starts it, even if nftables is unchanged (I16). The result of an earlier read, which
// ended late, is not kept: it may be older than the generation.
func TestKeptRules(t *testing.T) {
	impatient(t, func(w waiting) {
		u := &unchanged{now: 1, settled: true}
		r := &keptRules{rules: &byFamily{map[inet.Family]*patient{inet.IPv4: w.patient}}, kept: kept[map[inet.Family]kernel.RulesView]{in: u, most: keepRules}}
		reads := func(what string, want bool) {
			t.Helper()
			began := time.Now()
			if views, errs := r.Read(w.t.Context()); len(views)+len(errs) != 1 || time.Since(began) > 0 != want {
				t.Errorf("%s: read for %v: %v, %v", what, time.Since(began), views, errs)
			}
		}
		w.slow.become(10*time.Second, nil)
		reads("hangs", true)
		time.Sleep(10 * time.Second)
		w.slow.become(shortWait/2, nil)
		reads("ended late", false)
		reads("not kept", true)
		reads("kept", false)
		w.trouble(time.Now())
		reads("in trouble", true)
		reads("kept", false)
		time.Sleep(keepRules)
		reads("old", true)
	})
}

// TestSettled: a generation is settled once quick checks have seen no other for a while.
func TestSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &seen{}
		for _, step := range []struct {
			generation uint32
			settled    bool
		}{{1, false}, {1, false}, {1, true}, {1, true}, {2, false}, {3, false}, {3, false}, {3, true}} {
			s.note(step.generation)
			if got := s.settled(step.generation); got != step.settled || s.settled(step.generation+1) {
				t.Errorf("generation %d: %t", step.generation, got)
			}
			time.Sleep(settling / 2)
		}
	})
}
