package bench

import (
	"fmt"
	"testing"
	"time"
)

// ending judges when a storm is over. A program may wait for a second or more before it applies changes, and is idle until then.
type ending struct {
	limit       time.Duration // on the clock of the observations
	since, used time.Duration // when the program seemed to become idle, and the CPU time that it had used by then
	observed    bool
}

// observe reports whether the storm is over: for a second, all changes were applied and the program used less than 5% of the CPU. That
// second began at since.
func (e *ending) observe(at, used time.Duration, applied bool) (over bool, err error) {
	if !e.observed || !applied || used-e.used >= 50*time.Millisecond {
		e.since, e.used, e.observed = at, used, true
	}
	switch {
	case applied && at-e.since >= time.Second:
		return true, nil
	case at >= e.limit && !applied:
		return false, fmt.Errorf("changes are not applied by the limit, %s", at)
	case at >= e.limit:
		return false, fmt.Errorf("the program uses more than 5%% of the CPU at the limit, %s", at)
	}
	return false, nil
}

func TestStormIsOver(t *testing.T) {
	const never = time.Hour
	for _, test := range []struct {
		name string
		// The program works from the first time to the second, and has applied all changes at the third.
		works, rests, applies time.Duration
		want                  time.Duration // never: an error
	}{
		{"the program works immediately", 0, 600 * time.Millisecond, 300 * time.Millisecond, 600 * time.Millisecond},
		{"the program waits before it works", 1500 * time.Millisecond, 2 * time.Second, 2 * time.Second, 2 * time.Second},
		{"the program cleans up later", 300 * time.Millisecond, 900 * time.Millisecond, 350 * time.Millisecond, 900 * time.Millisecond},
		{"a change is lost", 0, 100 * time.Millisecond, never, never},
		{"the program never rests", 0, never, 100 * time.Millisecond, never},
	} {
		t.Run(test.name, func(t *testing.T) {
			e := ending{limit: 5 * time.Second}
			for at := time.Duration(0); ; at += 50 * time.Millisecond {
				over, err := e.observe(at, min(max(0, at-test.works), test.rests-test.works), at >= test.applies)
				if err != nil && test.want == never && at == e.limit {
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if over && e.since != test.want {
					t.Fatalf("over since %s, want %s", e.since, test.want)
				}
				if over {
					return
				}
			}
		})
	}
}
