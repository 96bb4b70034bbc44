package cluster

import (
	"fmt"
	"os"
	"testing"
	"time"
)

// Shared is a world that takes a long time to set up. The tests of a package use it in sequence, and the first use
// creates it.
type Shared[W world] struct {
	Make func(t *testing.T) (W, error)

	made  bool
	world W
	err   error
}

type world interface {
	DumpIfFailed(t testing.TB)
	Close() error
}

// On returns the world. If the test fails, On saves the cluster's state and logs.
func (s *Shared[W]) On(t *testing.T) W {
	t.Helper()
	if !s.made {
		s.make(t)
	}
	if s.err != nil {
		t.Fatalf("set up the shared world: %v", s.err)
	}
	s.world.DumpIfFailed(t)
	return s.world
}

func (s *Shared[W]) make(t *testing.T) {
	t.Helper()
	began := time.Now()
	s.made = true
	s.err = fmt.Errorf("%s ended during setup", t.Name()) // Make can end the test
	s.world, s.err = s.Make(t)
	t.Logf("the world took %s to set up", time.Since(began).Round(time.Second))
}

// Run runs the tests of the package, closes the world, and returns the exit status for TestMain.
func (s *Shared[W]) Run(m *testing.M) int {
	status := m.Run()
	if err := s.end(); err != nil {
		fmt.Fprintln(os.Stderr, "close the shared world:", err)
		return max(status, 1)
	}
	return status
}

func (s *Shared[W]) end() error {
	if !s.made || s.err != nil {
		return nil
	}
	return s.world.Close()
}
