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

// Any host that reaches the node can connect. requestTimeout limits how long a client may take to send a request,
// responseTimeout how long it may take to read the response, and idleTimeout how long it may keep an unused connection.
const (
	requestTimeout, responseTimeout, idleTimeout = 5 * time.Second, 10 * time.Second, 60 * time.Second
	maxHeader                                    = 8 << 10
)

// listener is one open port of one Service at one address.
type listener struct {
	socket net.Listener
	server *http.Server
	served chan struct{} // closed when serving has ended
}

// openListener starts serving the health checks of a Service at one address.
func (p *Ports) openListener(ctx context.Context, at binding) (*listener, error) {
	network := "tcp4"
	if at.addr.Addr().Is6() {
		network = "tcp6"
	}
	socket, err := p.listen(ctx, network, at.addr.String())
	if err != nil {
		return nil, err
	}
	errorLog, err := zap.NewStdLogAt(p.cfg.Log, zap.DebugLevel) // errors caused by clients
	if err != nil {
		_ = socket.Close() // the first error is the cause
		return nil, err
	}
	l := &listener{socket: socket, served: make(chan struct{}), server: &http.Server{
		Handler:     p.handler(at.service),
		ReadTimeout: requestTimeout, WriteTimeout: responseTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		ConnState: p.limit.Track, ErrorLog: errorLog,
		DisableGeneralOptionsHandler: true, // which would always respond 200 to "OPTIONS *"
	}}
	go func() {
		// If the socket breaks, Run opens another.
		defer p.settleSoon()
		defer close(l.served)
		_ = l.server.Serve(socket) // broken or closed
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

// close frees the port before it returns. It does not wait for clients: a client that has not read its response will retry.
func (l *listener) close() {
	_ = l.socket.Close() // the server does not close the socket unless it is serving
	_ = l.server.Close()
	<-l.served
}

// response is the body of a response, in kube-proxy's format.
type response struct {
	Service struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"service"`
	LocalEndpoints      int  `json:"localEndpoints"`
	ServiceProxyHealthy bool `json:"serviceProxyHealthy"`
}

// handler responds on every path: 200 if this node should get connections to the Service.
func (p *Ports) handler(id model.ServiceID) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		var res response
		res.Service.Namespace, res.Service.Name = id.Namespace, id.Name
		res.LocalEndpoints, res.ServiceProxyHealthy = p.local(id), p.cfg.Healthy()
		body, err := json.MarshalIndent(res, "", "\t")
		if err != nil {
			panic("marshal strings, a number and a bool: " + err.Error())
		}
		code := http.StatusServiceUnavailable
		if res.LocalEndpoints > 0 && res.ServiceProxyHealthy {
			code = http.StatusOK
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(res.LocalEndpoints))
		w.WriteHeader(code)
		_, _ = w.Write(body) // the client may have disconnected
		p.cfg.Responded(code)
	}
}
