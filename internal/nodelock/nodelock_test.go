package nodelock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// testSocket is this process's own: tests can run beside each other, and beside an agent.
var testSocket = socketName(fmt.Sprintf("%s/test-%d", agentSocket, os.Getpid()))

func mustAcquire(t *testing.T) *Lock {
	t.Helper()
	lock, err := testSocket.tryAcquire()
	if err != nil {
		t.Fatal(err)
	}
	return lock
}

func TestTryAcquireNamesTheHolder(t *testing.T) {
	lock := mustAcquire(t)
	_, err := testSocket.tryAcquire()
	if !errors.Is(err, ErrHeld) || !strings.Contains(err.Error(), fmt.Sprintf("process %d", os.Getpid())) {
		t.Errorf("second: %v", err)
	}
	if err := lock.Release(); err != nil {
		t.Fatal(err)
	}
	if err := mustAcquire(t).Release(); err != nil {
		t.Fatal(err)
	}
}

func TestAcquireWaitsForRelease(t *testing.T) {
	lock := mustAcquire(t)
	waiting, acquired := make(chan error, 2), make(chan *Lock, 1)
	go func() {
		second, err := testSocket.acquire(t.Context(), func(err error) { waiting <- err })
		if err != nil {
			t.Error(err)
		}
		acquired <- second
	}()
	if err := <-waiting; !errors.Is(err, ErrHeld) {
		t.Errorf("waiting: %v", err)
	}
	select {
	case <-acquired:
		t.Fatal("two holders")
	case <-time.After(50 * time.Millisecond): // can only miss a failure, never invent one
	}
	if err := lock.Release(); err != nil {
		t.Fatal(err)
	}
	if err := (<-acquired).Release(); err != nil {
		t.Fatal(err)
	}
	if len(waiting) > 0 {
		t.Error("waiting was called twice")
	}
}

func TestAcquireEndsWithItsContext(t *testing.T) {
	lock := mustAcquire(t)
	defer func() { _ = lock.Release() }()
	ctx, cancel := context.WithCancel(t.Context())
	_, err := testSocket.acquire(ctx, func(error) { cancel() })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("acquire: %v", err)
	}
}
