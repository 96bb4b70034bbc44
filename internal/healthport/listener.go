package healthport

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"strconv"
	"time"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// Anybody who reaches the node may connect. requestTimeout is how long a client may take to send a request, answerTimeout how
// long it may take to read the answer, and idleTimeout how long it may keep an unused connection.
const (
	requestTimeout, answerTimeout, idleTimeout = 5 * time.Second, 10 * time.Second, 60 * time.Second
	maxHeader                                  = 8 << 10
)

// listener is one open port of one Service at one address.
type listener struct {
	socket net.Listener
	server *http.Server
	served chan struct{} // closed when serving has ended
}

// openListener starts to answer at a place.
func (p *Ports) openListener(ctx context.Context, at place) (*listener, error) {
	network := "tcp4"
	if at.at.Addr().Is6() {
		network = "tcp6"
	}
	socket, err := p.listen(ctx, network, at.at.String())
	if err != nil {
		return nil, err
	}
	errorLog, err := zap.NewStdLogAt(p.cfg.Log, zap.DebugLevel) // what clients do wrong
	if err != nil {
		_ = socket.Close() // the other error says more
		return nil, err
	}
	l := &listener{socket: socket, served: make(chan struct{}), server: &http.Server{
		Handler:     p.answers(at.service),
		ReadTimeout: requestTimeout, WriteTimeout: answerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		ConnState: p.crowd.follow, ErrorLog: errorLog,
		DisableGeneralOptionsHandler: true, // it would say 200 to "OPTIONS *", whatever the state
	}}
	go func() {
		// A socket that breaks makes Run open another.
		defer p.settleSoon()
		defer close(l.served)
		_ = l.server.Serve(socket) // broken or closed: either way it has ended
	}()
	return l, nil
}

func (l *listener) broken() bool {
	select {
	case <-l.served:
		return true
	default:
		return false
	}
}

// close frees the port before it returns. It waits for no client: an answer takes no time, and who has not read it asks again.
func (l *listener) close() {
	_ = l.socket.Close() // the server knows it only once it serves
	_ = l.server.Close()
	<-l.served
}

// verdict is the body of an answer, as kube-proxy's.
type verdict struct {
	Service struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"service"`
	LocalEndpoints      int  `json:"localEndpoints"`
	ServiceProxyHealthy bool `json:"serviceProxyHealthy"`
}

// answers says on every path whether this node should get connections to the Service.
func (p *Ports) answers(id model.ServiceID) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		var v verdict
		v.Service.Namespace, v.Service.Name = id.Namespace, id.Name
		v.LocalEndpoints, v.ServiceProxyHealthy = p.local(id), p.cfg.Healthy()
		body, err := json.MarshalIndent(v, "", "\t")
		if err != nil {
			panic("strings, a number and a truth value cannot be written as JSON: " + err.Error())
		}
		code := http.StatusServiceUnavailable
		if v.LocalEndpoints > 0 && v.ServiceProxyHealthy {
			code = http.StatusOK
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(v.LocalEndpoints))
		w.WriteHeader(code)
		_, _ = w.Write(body) // the client may have gone
		p.cfg.Answered(code)
	}
}
