package daemon

import (
	"runtime"
	"testing"
)

func TestTwoProcessors(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	defer runtime.GOMAXPROCS(before)
	for _, c := range []struct {
		set         string
		given, want int
	}{{"", 1, 2}, {"1", 1, 1}, {"", 3, 3}} {
		runtime.GOMAXPROCS(c.given)
		twoProcessors(func(string) string { return c.set })
		if have := runtime.GOMAXPROCS(0); have != c.want {
			t.Errorf("GOMAXPROCS=%q with %d processors: %d, want %d", c.set, c.given, have, c.want)
		}
	}
}
