package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// viewPath serves a View. The optional parameters service=NAMESPACE/NAME, address=IP and all=true select its Services. history=true adds the
// history, and forwarded=true what an agent in user space forwards; connections=true adds its connections. With forwarded=true alone, the
// View contains nothing of the loop.
const viewPath = "/v1/view"

const (
	// maxConcurrent limits concurrent requests, because a complete View uses a lot of memory.
	maxConcurrent = 4
	// answerTimeout limits the wait for the loop if an earlier view exists, patience limits it otherwise, and ioTimeout limits a whole
	// connection.
	answerTimeout = 10 * time.Second
	patience      = 50 * time.Second
	ioTimeout     = time.Minute
	maxKept       = 16
	// maxAge limits the age of an earlier view. An older one says too little about the present.
	maxAge    = time.Minute
	maxHeader = 8 << 10
	// retryInterval is the pause after a failure to open the socket.
	retryInterval = 30 * time.Second
	// lookInterval is the interval at which the server checks whether its socket still exists.
	lookInterval = 5 * time.Second
)

// Config configures a Server.
type Config struct {
	Path string
	// View returns the loop's part of a view.
	View func(context.Context, agent.Query) (*view.View, error)
	// Complete adds what is missing from the loop's view: the machine, the state of its sources, and what its process forwards.
	Complete func(*view.View, agent.Query)
	Log      *zap.Logger
}

// Server serves the socket.
type Server struct {
	cfg  Config
	busy chan struct{}
	// look is lookInterval, except in tests.
	look time.Duration

	mu   sync.Mutex
	kept map[agent.Query]view.View
}

// NewServer returns a Server that does not listen yet.
func NewServer(cfg Config) *Server {
	return &Server{cfg: cfg, busy: make(chan struct{}, maxConcurrent), look: lookInterval, kept: map[agent.Query]view.View{}}
}

// Run serves until the context ends. If it cannot open the socket, it logs the error and retries, because the agent works without the
// socket.
func (s *Server) Run(ctx context.Context) {
	logged := ""
	for ctx.Err() == nil {
		err := s.serve(ctx)
		if err == nil {
			continue
		}
		if text := err.Error(); text != logged {
			logged = text
			s.cfg.Log.Warn("status socket unavailable; retrying", zap.Error(err), zap.Duration("every", retryInterval))
		}
		select {
		case <-ctx.Done():
		case <-time.After(retryInterval):
		}
	}
}

// serve listens until the context ends or the socket's file is deleted, for example by a program that cleans /run. A client cannot reach a
// socket whose file is missing.
func (s *Server) serve(ctx context.Context) error {
	socket, err := listen(s.cfg.Path)
	if err != nil {
		return err
	}
	defer socket.remove()
	server := &http.Server{
		Handler: s.handler(), MaxHeaderBytes: maxHeader, ReadHeaderTimeout: answerTimeout, ReadTimeout: answerTimeout,
		WriteTimeout: ioTimeout, IdleTimeout: answerTimeout, ErrorLog: zap.NewStdLog(s.cfg.Log.WithOptions(zap.IncreaseLevel(zap.ErrorLevel))),
	}
	ctx, end := context.WithCancel(ctx)
	defer end()
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	go func() {
		defer end()
		s.awaitLoss(ctx)
	}()
	if err := server.Serve(socket); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve on %s: %w", s.cfg.Path, err)
	}
	return nil
}

// awaitLoss waits until the socket's path no longer exists.
func (s *Server) awaitLoss(ctx context.Context) {
	look := time.NewTicker(s.look)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
		if _, err := os.Lstat(s.cfg.Path); errors.Is(err, fs.ErrNotExist) {
			s.cfg.Log.Warn("the status socket was deleted; creating it again", zap.String("path", s.cfg.Path))
			return
		}
	}
}

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+viewPath, s.respond)
	return mux
}

func (s *Server) respond(w http.ResponseWriter, r *http.Request) {
	ask, err := parseAsk(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	select {
	case s.busy <- struct{}{}:
		defer func() { <-s.busy }()
	case <-ctx.Done():
		http.Error(w, "too many requests; retry", http.StatusServiceUnavailable)
		return
	}
	v, err := s.view(ctx, ask)
	if errors.Is(err, ErrWaiting) {
		http.Error(w, err.Error(), codeWaiting)
		return
	}
	if errors.Is(err, context.DeadlineExceeded) {
		http.Error(w, err.Error(), codeNoAnswer)
		return
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	s.cfg.Complete(v, ask)
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // the client may have disconnected
}

// view queries the loop. During a long sync, it returns the last view of the same query, if there is one that is not too old.
func (s *Server) view(ctx context.Context, ask agent.Query) (*view.View, error) {
	type answer struct {
		view *view.View
		err  error
	}
	answered := make(chan answer, 1)
	go func() {
		v, err := s.cfg.View(ctx, ask)
		answered <- answer{v, err}
	}()
	late := time.NewTimer(answerTimeout)
	defer late.Stop()
	for {
		select {
		case a := <-answered:
			if a.err == nil {
				s.keep(ask, a.view)
			}
			return a.view, a.err
		case <-late.C:
			if v := s.last(ask); v != nil {
				return v, nil
			}
		}
	}
}

// keep remembers a view, unless it contains all Services. Such a view is too large.
func (s *Server) keep(ask agent.Query, v *view.View) {
	if ask.All {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for other := range s.kept {
		if len(s.kept) < maxKept {
			break
		}
		delete(s.kept, other)
	}
	kept := *v
	kept.Problems = slices.Clone(v.Problems)
	s.kept[ask] = kept
}

func (s *Server) last(ask agent.Query) *view.View {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, known := s.kept[ask]
	if !known || time.Since(v.Time) > maxAge {
		return nil
	}
	v.Problems, v.Agent.Busy = slices.Clone(v.Problems), true
	return &v
}

const (
	paramAll         = "all"
	paramHistory     = "history"
	paramSample      = "sample"
	paramForwarded   = "forwarded"
	paramConnections = "connections"
	paramService     = "service"
	paramAddress     = "address"
)

func parseAsk(r *http.Request) (agent.Query, error) {
	var ask agent.Query
	for name, values := range r.URL.Query() {
		value := values[0]
		switch name {
		case paramAll, paramSample, paramHistory, paramForwarded, paramConnections:
			if value != "true" {
				return ask, fmt.Errorf("parameter %s=%q: must be true", name, value)
			}
			ask.All, ask.Sample = ask.All || name == paramAll, ask.Sample || name == paramSample
			ask.History, ask.Forwarded = ask.History || name == paramHistory, ask.Forwarded || name == paramForwarded
			ask.Connections = ask.Connections || name == paramConnections
		case paramService:
			namespace, service, found := strings.Cut(value, "/")
			if !found {
				return ask, fmt.Errorf("parameter service=%q: must be NAMESPACE/NAME", value)
			}
			ask.Service = model.ServiceID{Namespace: namespace, Name: service}
		case paramAddress:
			addr, err := netip.ParseAddr(value)
			if err != nil {
				return ask, fmt.Errorf("parameter address=%q: must be an IP address", value)
			}
			ask.Address = addr
		default:
			return ask, fmt.Errorf("parameter %q: must be all, sample, history, forwarded, connections, service or address", name)
		}
	}
	return ask, nil
}
