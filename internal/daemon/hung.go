package daemon

import (
	"context"
	"fmt"
	"time"
)

// A call on a hung file system never returns, and nothing can interrupt it. The functions in this file abandon the
// goroutine of such a call.

const (
	// readLimit is how long the agent waits for an optional file when it starts.
	readLimit = 5 * time.Second
	// stopLimit is how long the agent waits for a file when it stops.
	stopLimit = 5 * time.Second
)

// readWithin returns the result of a read, or an error after readLimit.
func readWithin[T any](read func() (T, error)) (value T, err error) {
	ended := make(chan struct{})
	result := &struct {
		value T
		err   error
	}{}
	go func() {
		defer close(ended)
		result.value, result.err = read()
	}()
	select {
	case <-ended:
		return result.value, result.err
	case <-time.After(readLimit):
		return value, fmt.Errorf("reading the file has not finished after %s; check its disk or network file system", readLimit)
	}
}

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
