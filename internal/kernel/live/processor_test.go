package live

import (
	"runtime"
	"testing"
)

func TestSecondProcessor(t *testing.T) {
	defer runtime.SetDefaultGOMAXPROCS()
	t.Setenv("GOMAXPROCS", "")
	runtime.SetDefaultGOMAXPROCS()
	usual := runtime.GOMAXPROCS(0)
	for _, c := range []struct {
		name, env            string
		before, while, after int
	}{{"one CPU", "", 1, 2, usual}, {"more CPUs", "", usual + 2, usual + 2, usual + 2}, {"set by the user", "1", 1, 1, 1}} {
		t.Setenv("GOMAXPROCS", c.env)
		runtime.GOMAXPROCS(c.before)
		withSecondProcessor(func() {
			if n := runtime.GOMAXPROCS(0); n != c.while {
				t.Errorf("%s: %d processors during the job, want %d", c.name, n, c.while)
			}
		})
		if n := runtime.GOMAXPROCS(0); n != c.after {
			t.Errorf("%s: %d processors after the job, want %d", c.name, n, c.after)
		}
	}
}
