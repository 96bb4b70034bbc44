package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// viewPath is where a View is asked for: with the parameters service=NAMESPACE/NAME, address=IP or all=true, each may be
// left out, for the Services to tell of.
const viewPath = "/v1/view"

const (
	// atOnce is how many questions are worked on at a time: a View of everything takes memory.
	atOnce = 4
	// answerTimeout bounds the wait for the loop, ioTimeout all of a connection.
	answerTimeout = 10 * time.Second
	ioTimeout     = time.Minute
	maxHeader     = 8 << 10
	// retryTaken is how often a socket that somebody else listens on is tried again.
	retryTaken = 30 * time.Second
)

// Config of a Server.
type Config struct {
	// Path of the socket.
	Path string
	// View asks the loop.
	View func(context.Context, agent.Ask) (*view.View, error)
	// Complete adds what the loop does not know: the machine, and how its sources are.
	Complete func(*view.View)
	Log      *zap.Logger
}

// Server answers on the socket.
type Server struct {
	cfg  Config
	busy chan struct{}
}

// NewServer returns a Server that does not listen yet.
func NewServer(cfg Config) *Server {
	return &Server{cfg: cfg, busy: make(chan struct{}, atOnce)}
}

// Run answers until the context ends. A socket that cannot be had is told and tried again: the agent works without it.
func (s *Server) Run(ctx context.Context) {
	told := ""
	for ctx.Err() == nil {
		err := s.serve(ctx)
		if err == nil {
			continue
		}
		if text := err.Error(); text != told {
			told = text
			s.cfg.Log.Warn("nobody can ask this agent about its state; trying again", zap.Error(err), zap.Duration("every", retryTaken))
		}
		select {
		case <-ctx.Done():
		case <-time.After(retryTaken):
		}
	}
}

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
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(socket); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve on %s: %w", s.cfg.Path, err)
	}
	return nil
}

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+viewPath, s.answer)
	return mux
}

func (s *Server) answer(w http.ResponseWriter, r *http.Request) {
	ask, err := parseAsk(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), answerTimeout)
	defer cancel()
	select {
	case s.busy <- struct{}{}:
		defer func() { <-s.busy }()
	case <-ctx.Done():
		http.Error(w, "too many questions at once; ask again", http.StatusServiceUnavailable)
		return
	}
	v, err := s.cfg.View(ctx, ask)
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	s.cfg.Complete(v)
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(v) // whoever asked has gone
}

// The parameters of a question.
const (
	paramAll     = "all"
	paramService = "service"
	paramAddress = "address"
)

func parseAsk(r *http.Request) (agent.Ask, error) {
	var ask agent.Ask
	for name, values := range r.URL.Query() {
		value := values[0]
		switch name {
		case paramAll:
			if value != "true" {
				return ask, fmt.Errorf("parameter all=%q: want true", value)
			}
			ask.All = true
		case paramService:
			namespace, service, found := strings.Cut(value, "/")
			if !found {
				return ask, fmt.Errorf("parameter service=%q: want NAMESPACE/NAME", value)
			}
			ask.Service = model.ServiceID{Namespace: namespace, Name: service}
		case paramAddress:
			addr, err := netip.ParseAddr(value)
			if err != nil {
				return ask, fmt.Errorf("parameter address=%q: want an IP address", value)
			}
			ask.Address = addr
		default:
			return ask, fmt.Errorf("parameter %q: want all, service or address", name)
		}
	}
	return ask, nil
}
