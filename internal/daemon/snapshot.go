//go:build linux

package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"k8s.io/client-go/rest"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/lastknown"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// freshFor is the maximum age of the last message about each kind of object. If a message is older, no snapshot is
// written. Even without changes, a watch receives about one bookmark a minute.
const freshFor = 5 * time.Minute

// snapshot is the file with the last known state of the cluster. It is nil if no file is configured.
type snapshot struct {
	path     string
	source   *Source
	log      *zap.Logger
	earlier  *agent.LastKnown // nil if there is no usable file
	recorder *lastknown.Recorder

	// accepted is true once the agent has served the API server's objects: it refuses lists that lack most of what it inherits.
	accepted atomic.Bool

	mu     sync.Mutex
	at     time.Time
	err    error
	served bool
}

// openSnapshot reads the snapshot. It returns nil if no file is configured or the source is not an API server.
func openSnapshot(settings *config.Settings, node string, source *Source, log *zap.Logger) *snapshot {
	if settings.SnapshotFile == "" || source.api == nil {
		return nil
	}
	s := &snapshot{path: settings.SnapshotFile, source: source, log: log.With(zap.String("file", settings.SnapshotFile))}
	identity := func() (lastknown.Identity, error) {
		trusted, err := authorities(source.api)
		return lastknown.Identity{
			Node: node, APIServer: source.api.Host, Authorities: trusted, ServiceProxyName: settings.ServiceProxyName,
		}, err
	}
	s.recorder = &lastknown.Recorder{Source: source.Source, Path: s.path, ID: identity, Fresh: s.fresh, Wrote: s.wrote}
	id, err := identity()
	if err != nil {
		s.err = err
		s.log.Warn("snapshot not used", zap.Error(err))
		return s
	}
	s.use(node, func() (*lastknown.State, error) {
		return lastknown.Read(s.path, id, time.Now(), settings.SnapshotMaxAge)
	})
	return s
}

// use reads the file. If the file system hangs, the agent starts without the snapshot.
func (s *snapshot) use(node string, read func() (*lastknown.State, error)) {
	state, err := readWithin(read)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		s.log.Info("no snapshot yet")
	case err != nil:
		s.err = err
		s.log.Warn("snapshot not used", zap.Error(err))
	default:
		s.at = state.At
		s.log.Info("snapshot read", zap.Duration("age", time.Since(state.At).Round(time.Second)), zap.Int("services", len(state.Services)))
		s.earlier = &agent.LastKnown{Changes: state.RemoteChanges(node), Served: s.servedOnce}
	}
}

// authorities lists the certificate authorities that the agent currently trusts for the API server. They can change, because client-go rereads the
// file when it changes.
func authorities(api *rest.Config) ([]string, error) {
	if api.Insecure {
		return nil, nil
	}
	if len(api.CAData) > 0 || api.CAFile == "" {
		return lastknown.Authorities(api.CAData), nil
	}
	bundle, err := os.ReadFile(api.CAFile)
	if err != nil {
		return nil, fmt.Errorf("read the API server's certificate authority: %w", err)
	}
	return lastknown.Authorities(bundle), nil
}

func (s *snapshot) lastKnown() *agent.LastKnown {
	if s == nil {
		return nil
	}
	earlier := s.earlier
	s.earlier = nil // the loop drops the state once it is no longer needed
	return earlier
}

func (s *snapshot) record(source agent.Source) agent.Source {
	if s == nil {
		return source
	}
	return s.recorder
}

func (s *snapshot) run(ctx context.Context) {
	if s != nil && !stopsInTime(ctx, s.recorder.Run) {
		s.log.Warn("the last write of the snapshot did not finish: its file system is not responding", zap.Duration("after", stopLimit))
	}
}

// observe follows whether the agent serves what the source delivers.
func (s *snapshot) observe(r *agent.Report) {
	if s != nil && r.Full {
		s.accepted.Store(true)
	}
}

// fresh reports whether the agent serves the API server's objects, and the API server has recently sent a message about every kind of object.
func (s *snapshot) fresh() bool {
	if !s.accepted.Load() || len(s.source.lastErrors()) > 0 {
		return false
	}
	for _, at := range s.source.lastContact() {
		if time.Since(at) > freshFor {
			return false
		}
	}
	return true
}

func (s *snapshot) wrote(at time.Time, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil && s.err == nil {
		s.log.Warn("writing the snapshot failed; retrying", zap.Error(err))
	}
	if s.err = err; err == nil {
		s.at = at
	}
}

// lacking explains why the API server's objects are not known yet.
func (s *snapshot) lacking() string {
	if len(s.source.lastErrors()) > 0 {
		return "API server unavailable"
	}
	return "the API server has not sent all objects yet"
}

func (s *snapshot) servedOnce(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case errors.Is(err, agent.ErrKernelNewer) && s.err == nil:
		s.log.Info(s.lacking()+"; snapshot not needed", zap.Error(err))
		return
	case err != nil && s.err == nil:
		s.log.Warn("serving the snapshot failed; retrying", zap.Error(err))
	case err == nil:
		s.log.Warn(s.lacking()+"; serving the snapshot, without the endpoints of this node",
			zap.Duration("age", time.Since(s.at).Round(time.Second)))
		s.served = true
	}
	s.err = err
}

func (s *snapshot) telemetry() (at time.Time, served bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at, s.served && !s.source.Source.Synced()
}

func (s *snapshot) view() *view.Snapshot {
	if s == nil {
		return nil
	}
	at, served := s.telemetry()
	v := &view.Snapshot{File: s.path, Served: served}
	if !at.IsZero() {
		v.At = &at
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		v.Error = s.err.Error()
	}
	return v
}

// readLimit is how long the agent waits for an optional file when it starts.
const readLimit = 5 * time.Second

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
