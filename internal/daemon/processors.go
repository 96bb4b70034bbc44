package daemon

import "runtime"

// twoProcessors lets the Go runtime run two goroutines at the same time, even on a machine with one CPU. The kernel then decides which of
// them runs, by the priorities of their threads. With a single goroutine at a time, a change could wait up to 10 ms, the runtime's time
// slice, for a reader in the background. It does not override GOMAXPROCS from the environment.
func twoProcessors(getenv func(string) string) {
	if getenv("GOMAXPROCS") == "" && runtime.GOMAXPROCS(0) == 1 {
		runtime.GOMAXPROCS(2)
	}
}
