package telemetry

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// occupied returns the problem for a server that cannot listen.
func (s *server) occupied(ctx context.Context, err error) model.Problem {
	p := model.Problem{
		Field: s.flag, Value: s.address, Reason: "the agent cannot serve " + s.what + " there: " + err.Error(),
		Remedy: "use an address of this node",
	}
	if errors.Is(err, unix.EADDRINUSE) {
		p.Reason = "the agent cannot serve " + s.what + " there: " + occupant(ctx, s.address) +
			" uses this port, and responds to probes and scrapes instead of the agent"
		p.Remedy = "stop that program (ss -ltnp shows it) or use another port"
	}
	return p
}

// occupant identifies the program that listens on an address. kube-proxy uses the same ports as the agent.
func occupant(ctx context.Context, address string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return "another program"
	}
	if ip := net.ParseIP(host); ip == nil || ip.IsUnspecified() {
		host = "localhost"
	}
	base := "http://" + net.JoinHostPort(host, port)
	mode := strings.TrimSpace(ask(ctx, base+"/proxyMode"))
	switch mode {
	case "ipvs", "nftables":
		return "kube-proxy in " + mode + " mode or another kube-ipvs"
	case "iptables":
		return "kube-proxy in iptables mode"
	}
	var health healthStatus
	if json.Unmarshal([]byte(ask(ctx, base+"/healthz")), &health) == nil && !health.CurrentTime.IsZero() {
		return "kube-proxy or another kube-ipvs"
	}
	return "another program"
}

func ask(ctx context.Context, url string) string {
	const longest = 4 << 10
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return ""
	}
	transport := &http.Transport{DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return ""
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, longest))
	if err != nil {
		return ""
	}
	return string(body)
}
