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

// Any host that reaches the node can connect. The timeouts limit the time to send a request, the time to read the
// response, and the lifetime of an idle connection.
const (
	requestTimeout, responseTimeout, idleTimeout = 5 * time.Second, 10 * time.Second, 60 * time.Second
	maxHeader                                    = 8 << 10
)

type listener struct {
	socket net.Listener
	server *http.Server
	served chan struct{} // closed when serving has ended
}

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
		_ = socket.Close() // report only the first error
		return nil, err
	}
	l := &listener{socket: socket, served: make(chan struct{}), server: &http.Server{
		Handler:     p.handler(at.service),
		ReadTimeout: requestTimeout, WriteTimeout: responseTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
		ConnState: p.limit.Track, ErrorLog: errorLog,
		DisableGeneralOptionsHandler: true, // the handler would always respond 200 to "OPTIONS *"
	}}
	go func() {
		// If the socket breaks, Run opens another.
		defer p.settleSoon()
		defer close(l.served)
		_ = l.server.Serve(socket) // returns when the socket is broken or closed
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

// close frees the port before it returns. It does not wait for clients: they retry if they have not read the response.
func (l *listener) close() {
	_ = l.socket.Close() // server.Close closes the socket only after Serve has started
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

// handler responds on every path, with status 200 if this node should receive connections to the Service.
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
