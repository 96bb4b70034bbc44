package telemetry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/healthport"
)

const (
	// bindRetry is the pause after a failure to listen on an address.
	bindRetry = 5 * time.Second
	// readTimeout limits the time to receive a request, idleTimeout the lifetime of an idle connection, and
	// stopTimeout the time for responses during shutdown.
	readTimeout, idleTimeout, stopTimeout = 10 * time.Second, 90 * time.Second, 2 * time.Second
	maxHeader                             = 16 << 10
)

// server is one HTTP server. If it cannot listen, it retries in the background.
type server struct {
	what, flag, address string
	handler             http.Handler
	log                 *zap.Logger
	retry               time.Duration
	// listen replaces net.Listen in tests.
	listen func(address string) (net.Listener, error)
	// listening, if set, is called with the address that the server listens on.
	listening func(net.Addr)
	// problems, if set, receives a problem while the server cannot listen.
	problems *nodeProblems
}

func (s *server) run(ctx context.Context) {
	reported := ""
	for ctx.Err() == nil {
		served, err := s.serve(ctx)
		if ctx.Err() != nil {
			return
		}
		if served {
			reported = ""
		}
		if text := fmt.Sprint(err); text != reported {
			reported = text
			s.log.Error("cannot serve "+s.what+"; retrying", zap.String("address", s.address),
				zap.String("flag", s.flag), zap.Duration("every", s.retry), zap.Error(err))
			if s.problems != nil {
				s.problems.set(s.occupied(ctx, err))
			}
		}
		sleep(ctx, s.retry)
	}
}

// serve serves until ctx ends or the server fails. served is false if it could not listen.
func (s *server) serve(ctx context.Context) (served bool, err error) {
	errorLog, err := zap.NewStdLogAt(s.log, zap.DebugLevel) // errors caused by clients
	if err != nil {
		return false, err
	}
	listen := s.listen
	if listen == nil {
		listen = func(address string) (net.Listener, error) {
			return new(net.ListenConfig).Listen(ctx, "tcp", address)
		}
	}
	listener, err := listen(s.address)
	if err != nil {
		return false, err
	}
	s.log.Info("serving "+s.what, zap.Stringer("address", listener.Addr()))
	if s.problems != nil {
		s.problems.clear(s.flag)
	}
	if s.listening != nil {
		s.listening(listener.Addr())
	}
	// No write timeout: a profile takes as long as the client requests.
	server := &http.Server{
		Handler: s.handler, ReadTimeout: readTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		ErrorLog: errorLog, ConnState: healthport.NewConnLimit(healthport.MaxConnections).Track,
	}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		grace, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		if server.Shutdown(grace) != nil {
			_ = server.Close() // disconnects clients that are still reading
		}
	})
	err = server.Serve(listener)
	if !stop() {
		<-stopped
	}
	if errors.Is(err, http.ErrServerClosed) {
		return true, nil
	}
	return true, err
}

func metricsHandler(registry *prometheus.Registry, cfg Config, mode *mode) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { writeText(w, "ok") })
	mux.HandleFunc("/proxyMode", func(w http.ResponseWriter, _ *http.Request) { writeText(w, mode.plane()) })
	if cfg.Configuration != nil {
		mux.HandleFunc("/configz", func(w http.ResponseWriter, _ *http.Request) { writeConfiguration(w, cfg.Configuration) })
	}
	if cfg.Profiling {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	return mux
}

// writeConfiguration responds like /configz of Kubernetes components, with an object whose only field is named after the format.
func writeConfiguration(w http.ResponseWriter, configuration func() ([]byte, error)) {
	text, err := configuration()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = fmt.Fprintf(w, "{\"config.kube-ipvs.io\": %s}\n", bytes.TrimSpace(text)) // the client may have disconnected
}

func writeText(w http.ResponseWriter, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write([]byte(text)) // the client may have disconnected
}
