package live

import (
	"runtime"
	"testing"
)

func TestSecondProcessor(t *testing.T) {
	defer runtime.SetDefaultGOMAXPROCS()
	for _, c := range []struct {
		name, env     string
		before, while int
	}{{"one CPU", "", 1, 2}, {"more CPUs", "", 3, 3}, {"set by the user", "1", 1, 1}} {
		t.Setenv("GOMAXPROCS", c.env)
		runtime.GOMAXPROCS(c.before)
		if withSecondProcessor(func() {
			if n := runtime.GOMAXPROCS(0); n != c.while {
				t.Errorf("%s: %d processors during the job, want %d", c.name, n, c.while)
			}
		}); c.before == c.while && runtime.GOMAXPROCS(0) != c.before {
			t.Errorf("%s: %d processors after the job", c.name, runtime.GOMAXPROCS(0))
		}
	}
}
