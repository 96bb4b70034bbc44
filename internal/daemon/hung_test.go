//go:build linux

package daemon

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/lastknown"
)

// A snapshot on a hung file system does not keep the agent from starting.
func TestHungSnapshot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		defer close(release)
		s := &snapshot{log: zap.NewNop()}
		s.use("n1", func() (*lastknown.State, error) {
			<-release
			return &lastknown.State{}, nil
		})
		if s.err == nil || s.lastKnown() != nil {
			t.Errorf("got error %v, state %v", s.err, s.earlier)
		}
	})
}

func TestReadsInTimeReturnTheirResult(t *testing.T) {
	failed := errors.New("failed")
	if value, err := readWithin(func() (int, error) { return 1, failed }); value != 1 || !errors.Is(err, failed) {
		t.Errorf("%d, %v", value, err)
	}
}

// A part that waits for a hung file system does not keep the agent from exiting. Before it exits, the agent waits for
// all other parts.
func TestHungFileAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		defer close(release)
		ctx, stop := context.WithCancel(t.Context())
		time.AfterFunc(time.Hour, stop)
		if stopsInTime(ctx, func(context.Context) { <-release }) {
			t.Error("stopsInTime reports that a hung part returned")
		}
		if !stopsInTime(ctx, func(context.Context) { time.Sleep(stopLimit - 1) }) {
			t.Error("the agent exited before the last write finished")
		}
		if !stopsInTime(t.Context(), func(context.Context) {}) {
			t.Error("stopsInTime reports that a part that returned is hung")
		}
	})
}

// stuckSource is a source whose requests wait for a file.
type stuckSource struct {
	Runner
	release chan struct{}
}

func (s stuckSource) Run(context.Context) error {
	<-s.release
	return nil
}

// A token file on a hung file system, or a credential plugin that hangs, does not keep the agent from exiting, even though client-go
// cannot interrupt them.
func TestHungCredentialsAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		ctx, stop := context.WithCancel(t.Context())
		time.AfterFunc(time.Hour, stop)
		ended := make(chan error, 1)
		go func() { ended <- (&Source{Source: stuckSource{release: release}}).run(ctx, zap.NewNop()) }()
		time.Sleep(time.Hour + stopLimit)
		synctest.Wait()
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
		default:
			t.Error("the source keeps the agent from exiting")
		}
		close(release)
	})
}
