package controlplane

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"
)

// Emulated machines take seconds to load the program.
const etcdDeadline = time.Minute

// startEtcd starts etcd on a Unix socket, which needs neither a free port nor a working loopback.
func (cp *ControlPlane) startEtcd(ctx context.Context) error {
	socket := cp.file("etcd.sock")
	const longest = 107 // sun_path, see unix(7)
	if len(socket) > longest {
		return fmt.Errorf("start etcd: the socket path %s is longer than %d bytes: use a shorter Dir", socket, longest)
	}
	etcd, err := startProcess(cp.file("etcd.log"), cp.command(cp.etcdProgram, etcdArgs(cp.file("etcd"), socket)...))
	if err != nil {
		return err
	}
	cp.etcd = etcd
	ctx, cancel := context.WithTimeout(ctx, etcdDeadline)
	defer cancel()
	return etcd.await(ctx, func(ctx context.Context) error { return healthy(ctx, socket) })
}

// An API server that connects before etcd has elected itself leader backs off for seconds.
func healthy(ctx context.Context, socket string) error {
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://etcd/health", nil)
	if err != nil {
		return err
	}
	response, err := transport.RoundTrip(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("GET /health: %s", response.Status)
	}
	return nil
}

func etcdArgs(data, socket string) []string {
	return []string{
		"--name=e2e",
		"--data-dir=" + data,
		"--listen-client-urls=unix://" + socket,
		// With an empty host, the kernel chooses a socket name. A lone member has no peers that need to find it.
		"--listen-peer-urls=unix://",
		// etcd requires a host and port here, but no client connects to them.
		"--advertise-client-urls=http://localhost:2379",
		"--initial-advertise-peer-urls=http://localhost:2380",
		"--initial-cluster=e2e=http://localhost:2380",
		// A lone member waits for one election timeout before it serves. Shorter heartbeats only waste CPU time.
		"--heartbeat-interval=50",
		"--election-timeout=250",
		"--unsafe-no-fsync",
		"--log-level=warn",
	}
}
