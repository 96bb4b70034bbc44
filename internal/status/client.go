package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/rundir"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// ErrNoAgent reports that no process listens on the socket, or that it or its loop does not respond.
var ErrNoAgent = errors.New("no kube-ipvs agent responds")

// ErrWaiting reports that the agent is waiting for the node lock and has no view yet.
var ErrWaiting = errors.New("waiting for the node lock")

const (
	codeWaiting  = http.StatusConflict
	codeNoAnswer = http.StatusGatewayTimeout // the loop did not answer
)

// maxAnswer limits the size of the response. A View with 100,000 endpoints is a tenth of that size.
const maxAnswer = 1 << 30

// Ask queries the agent on the socket. If no agent responds, or only root may ask, v is nil and silence is the reason.
func Ask(ctx context.Context, path string, ask agent.Query) (v *view.View, silence, err error) {
	v, err = Get(ctx, path, ask)
	switch {
	case errors.Is(err, ErrNoAgent), errors.Is(err, ErrWaiting):
		return nil, err, nil
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("%w; run the command as root", err), nil
	}
	return v, nil, err
}

// Get queries the agent on the socket. If no agent is running, the error is ErrNoAgent.
func Get(ctx context.Context, path string, ask agent.Query) (*view.View, error) {
	ctx, cancel := context.WithTimeout(ctx, ioTimeout)
	defer cancel()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx, path) }}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent"+viewPath+"?"+parameters(ask), nil)
	if err != nil {
		return nil, fmt.Errorf("query the agent: %w", err)
	}
	response, err := (&http.Client{Transport: transport}).Do(request)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		return nil, fmt.Errorf("%w on %s", ErrNoAgent, path)
	case errors.Is(err, context.DeadlineExceeded):
		return nil, fmt.Errorf("%w on %s, although a process listens there: it may be hanging, or a sync may be taking very long", ErrNoAgent, path)
	case errors.Is(err, fs.ErrPermission):
		return nil, fmt.Errorf("query the agent on %s: only root has access: %w", path, err)
	case err != nil:
		return nil, fmt.Errorf("query the agent on %s: %w", path, err)
	}
	defer response.Body.Close()
	return read(response)
}

// dial connects to the socket. It rejects a listener that another user runs, because anyone can pose as the agent in a directory that
// others can write to.
func dial(ctx context.Context, path string) (net.Conn, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	if err := checkPeer(conn.(*net.UnixConn)); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

func checkPeer(conn *net.UnixConn) error {
	peer, err := rundir.Peer(conn)
	if err != nil {
		return fmt.Errorf("identify the listening process: %w", err)
	}
	if !rundir.Trusted(peer.Uid) {
		return fmt.Errorf("process %d of user %d listens there and is not an agent; stop it, and allow only root to write to the directory", peer.Pid, peer.Uid)
	}
	return nil
}

func read(response *http.Response) (*view.View, error) {
	body := io.LimitReader(response.Body, maxAnswer)
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(body, maxHeader))
		if response.StatusCode == codeWaiting {
			holder := strings.TrimPrefix(strings.TrimSpace(string(text)), ErrWaiting.Error())
			return nil, fmt.Errorf("the agent is %w%s", ErrWaiting, holder)
		}
		if response.StatusCode == codeNoAnswer {
			return nil, fmt.Errorf("%w: %s", ErrNoAgent, strings.TrimSpace(string(text)))
		}
		return nil, fmt.Errorf("the agent responded: %s (%s)", strings.TrimSpace(string(text)), response.Status)
	}
	var v view.View
	if err := json.NewDecoder(body).Decode(&v); err != nil {
		return nil, fmt.Errorf("read the agent's response: %w", err)
	}
	return &v, nil
}

func parameters(ask agent.Query) string {
	values := url.Values{}
	if ask.All {
		values.Set(paramAll, "true")
	}
	if ask.History {
		values.Set(paramHistory, "true")
	}
	if ask.Sample {
		values.Set(paramSample, "true")
	}
	if ask.Forwarded {
		values.Set(paramForwarded, "true")
	}
	if ask.Connections {
		values.Set(paramConnections, "true")
	}
	if ask.Service != (model.ServiceID{}) {
		values.Set(paramService, ask.Service.String())
	}
	if ask.Address.IsValid() {
		values.Set(paramAddress, ask.Address.String())
	}
	return values.Encode()
}
