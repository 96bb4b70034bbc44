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
)

const (
	// bindRetry is how long to wait until an address is tried again that could not be listened on.
	bindRetry = 5 * time.Second
	// readTimeout is how long a client may take to send a request, idleTimeout how long it may keep an unused connection,
	// and stopTimeout how long answers may take once we are asked to stop.
	readTimeout, idleTimeout, stopTimeout = 10 * time.Second, 90 * time.Second, 2 * time.Second
	maxHeader                             = 16 << 10
)

// server is one HTTP server. That it cannot listen is a pity and no reason to stop serving Services.
type server struct {
	what, flag, address string
	handler             http.Handler
	log                 *zap.Logger
	// retry is how long to wait after a failure.
	retry time.Duration
	// listening, if set, is told where.
	listening func(net.Addr)
}

func (s *server) run(ctx context.Context) {
	told := false
	for ctx.Err() == nil {
		err := s.serve(ctx)
		if ctx.Err() != nil {
			return
		}
		if !told {
			told = true
			s.log.Error("cannot serve "+s.what+"; trying again until it works", zap.String("address", s.address),
				zap.String("flag", s.flag), zap.Duration("every", s.retry), zap.Error(err))
		}
		sleep(ctx, s.retry)
	}
}

// serve serves until the context ends or nobody can listen any more.
func (s *server) serve(ctx context.Context) error {
	errorLog, err := zap.NewStdLogAt(s.log, zap.DebugLevel) // what clients do wrong
	if err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", s.address)
	if err != nil {
		return err
	}
	s.log.Info("serving "+s.what, zap.Stringer("address", listener.Addr()))
	if s.listening != nil {
		s.listening(listener.Addr())
	}
	// No limit for answers: a profile takes as long as it was asked to.
	server := &http.Server{
		Handler: s.handler, ReadTimeout: readTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		ErrorLog: errorLog,
	}
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		grace, cancel := context.WithTimeout(context.Background(), stopTimeout)
		defer cancel()
		if server.Shutdown(grace) != nil {
			_ = server.Close() // whoever is still reading is cut off
		}
	})
	err = server.Serve(listener)
	if !stop() {
		<-stopped
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// metricsHandler serves what kube-proxy serves on its metrics address, in as far as we have it.
func metricsHandler(registry *prometheus.Registry, cfg Config) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { writeText(w, "ok") })
	mux.HandleFunc("/proxyMode", func(w http.ResponseWriter, _ *http.Request) { writeText(w, "ipvs") })
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

// writeConfiguration answers as Kubernetes components do: an object with one field, which names the format.
func writeConfiguration(w http.ResponseWriter, configuration func() ([]byte, error)) {
	text, err := configuration()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = fmt.Fprintf(w, "{\"config.kube-ipvs.io\": %s}\n", bytes.TrimSpace(text)) // the client may have gone
}

func writeText(w http.ResponseWriter, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write([]byte(text)) // the client may have gone
}
