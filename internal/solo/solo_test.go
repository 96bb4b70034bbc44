package solo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// ofTest is nobody else's: tests may run beside each other, and beside an agent.
var ofTest = seat(fmt.Sprintf("%s/test-%d", name, os.Getpid()))

func take(t *testing.T) *Place {
	t.Helper()
	place, err := ofTest.take()
	if err != nil {
		t.Fatal(err)
	}
	return place
}

func TestSecondIsTold(t *testing.T) {
	place := take(t)
	_, err := ofTest.take()
	if !errors.Is(err, ErrTaken) || !strings.Contains(err.Error(), fmt.Sprintf("process %d", os.Getpid())) {
		t.Errorf("second: %v", err)
	}
	if err := place.Leave(); err != nil {
		t.Fatal(err)
	}
	if err := take(t).Leave(); err != nil {
		t.Fatal(err)
	}
}

func TestSecondWaits(t *testing.T) {
	place := take(t)
	told, took := make(chan error, 2), make(chan *Place, 1)
	go func() {
		second, err := ofTest.await(t.Context(), func(err error) { told <- err })
		if err != nil {
			t.Error(err)
		}
		took <- second
	}()
	if err := <-told; !errors.Is(err, ErrTaken) {
		t.Errorf("told %v", err)
	}
	select {
	case <-took:
		t.Fatal("both have the place")
	case <-time.After(50 * time.Millisecond): // shows only that it does not go wrong at once
	}
	if err := place.Leave(); err != nil {
		t.Fatal(err)
	}
	if err := (<-took).Leave(); err != nil {
		t.Fatal(err)
	}
	if len(told) > 0 {
		t.Error("told twice")
	}
}

func TestWaitingEndsWithItsContext(t *testing.T) {
	place := take(t)
	defer func() { _ = place.Leave() }()
	ctx, cancel := context.WithCancel(t.Context())
	_, err := ofTest.await(ctx, func(error) { cancel() })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("waiting ended with %v", err)
	}
}
