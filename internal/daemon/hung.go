package daemon

import (
	"context"
	"time"
)

// A call on a hung file system never returns, and nothing can interrupt it. stopsInTime and readWithin abandon the
// goroutine of such a call.

// stopLimit is how long the agent waits for a file when it stops.
const stopLimit = 5 * time.Second

// stopsInTime runs a part until the context ends. It reports whether the part then returns within stopLimit.
func stopsInTime(ctx context.Context, part func(context.Context)) bool {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		part(ctx)
	}()
	select {
	case <-ended:
		return true
	case <-ctx.Done():
	}
	select {
	case <-ended:
		return true
	case <-time.After(stopLimit):
		return false
	}
}
