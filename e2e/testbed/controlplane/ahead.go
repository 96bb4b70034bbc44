package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"sync"
	"time"
)

// Another program can start a control plane in advance, in another network namespace. The test's
// processes reach it through a Unix socket: a gate in the test's namespace listens on the address
// of the API server and forwards connections.

// AheadVariable is the environment variable with the directory of such a control plane.
const AheadVariable = "KUBE_IPVS_CONTROLPLANE"

// Files in that directory.
const (
	authorityKeyFile = "ca.key"
	aheadSocket      = "apiserver.sock"
	aheadReady       = "ready"
	aheadTaken       = "taken"
)

// AheadAddress is the API server's address in the certificate of a control plane started ahead.
var AheadAddress = netip.AddrFrom4([4]byte{192, 168, 50, 1})

// RunAhead starts a control plane in a directory for one later test and runs it until ctx ends.
func RunAhead(ctx context.Context, dir string) error {
	cp, err := Launch(ctx, Config{Dir: dir, AdvertiseAddress: AheadAddress, Logf: func(format string, args ...any) {
		fmt.Printf(format+"\n", args...)
	}})
	if err != nil {
		return err
	}
	socket, err := net.Listen("unix", cp.file(aheadSocket))
	if err != nil {
		return errors.Join(err, cp.Stop())
	}
	entrance := newGate(socket, func() (net.Conn, error) {
		return net.Dial("tcp", netip.AddrPortFrom(cp.config.BindAddress, uint16(cp.config.Port)).String())
	})
	defer entrance.close()
	if err := cp.announce(); err != nil {
		return errors.Join(err, cp.Stop())
	}
	<-ctx.Done()
	return cp.Stop()
}

// announce writes the files that a test needs to use the control plane.
func (cp *ControlPlane) announce() error {
	key, err := keyPEM(cp.authority.key)
	if err != nil {
		return err
	}
	if err := os.WriteFile(cp.file(authorityKeyFile), key, 0o600); err != nil {
		return err
	}
	return os.WriteFile(cp.file(aheadReady), nil, 0o600)
}

// takeAhead returns the control plane started ahead if it exists, is unused and fits the
// configuration.
func (c Config) takeAhead(ctx context.Context) (*ControlPlane, error) {
	dir := os.Getenv(AheadVariable)
	if dir == "" || !c.suitsAhead() {
		return nil, nil
	}
	taken, err := os.OpenFile(filepath.Join(dir, aheadTaken), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, os.ErrExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	taken.Close()
	c.Dir = dir
	cp := &ControlPlane{config: c}
	begin := time.Now()
	if err := cp.awaitAhead(ctx); err != nil {
		return nil, err
	}
	if cp.authority, err = readAuthority(cp.file(authorityCert), cp.file(authorityKeyFile)); err != nil {
		return nil, err
	}
	if err := cp.openGate(); err != nil {
		return nil, err
	}
	c.Logf("kube-apiserver started ahead is ready on %s after %s", cp.URL(), time.Since(begin).Round(time.Millisecond))
	cp.admin, err = cp.ClientFor("kube-ipvs-e2e-admin", "system:masters")
	return cp, err
}

// suitsAhead reports whether a control plane with the default configuration is sufficient.
func (c Config) suitsAhead() bool {
	plain := Config{Root: c.Root, NetNS: c.NetNS, BindAddress: AheadAddress, AdvertiseAddress: AheadAddress, Port: c.Port,
		ServiceCIDRs: defaultServiceCIDRs(), ReadyTimeout: c.ReadyTimeout}
	c.Logf = nil
	return c.NetNS != "" && reflect.DeepEqual(c, plain)
}

func (cp *ControlPlane) awaitAhead(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, cp.config.ReadyTimeout)
	defer cancel()
	for {
		if _, err := os.Stat(cp.file(aheadReady)); err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the control plane started ahead is not ready; its log:\n%s", tail(cp.file("log")))
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// openGate lets clients in the test's namespace reach the API server started ahead.
func (cp *ControlPlane) openGate() error {
	var listener net.Listener
	var err error
	address := net.JoinHostPort(cp.config.BindAddress.String(), strconv.Itoa(cp.config.Port))
	if failed := inNetNS(cp.config.NetNS, func() { listener, err = net.Listen("tcp", address) }); failed != nil || err != nil {
		return fmt.Errorf("listen at %s in %s: %w", address, cp.config.NetNS, errors.Join(failed, err))
	}
	cp.gate = newGate(listener, func() (net.Conn, error) { return net.Dial("unix", cp.file(aheadSocket)) })
	return nil
}

// gate forwards connections.
type gate struct {
	listener net.Listener
	dial     func() (net.Conn, error)

	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	closed bool
	wg     sync.WaitGroup
}

func newGate(listener net.Listener, dial func() (net.Conn, error)) *gate {
	g := &gate{listener: listener, dial: dial, conns: map[net.Conn]struct{}{}}
	g.wg.Go(g.accept)
	return g
}

func (g *gate) accept() {
	for {
		conn, err := g.listener.Accept()
		if err != nil {
			return // closed
		}
		g.wg.Go(func() { g.pass(conn) })
	}
}

func (g *gate) pass(conn net.Conn) {
	onward, err := g.dial()
	if err != nil || !g.add(conn, onward) {
		conn.Close()
		return
	}
	var both sync.WaitGroup
	copyAll := func(to, from net.Conn) {
		_, _ = io.Copy(to, from) // the other end sees EOF in any case
		to.Close()
		from.Close()
	}
	both.Go(func() { copyAll(onward, conn) })
	both.Go(func() { copyAll(conn, onward) })
	both.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.conns, conn)
	delete(g.conns, onward)
}

// add registers both ends of a connection. It returns false if the gate is closed.
func (g *gate) add(conns ...net.Conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range conns {
		if g.closed {
			c.Close()
		} else {
			g.conns[c] = struct{}{}
		}
	}
	return !g.closed
}

// close closes the gate and all connections through it.
func (g *gate) close() {
	g.listener.Close()
	g.mu.Lock()
	g.closed = true
	for c := range g.conns {
		c.Close()
	}
	g.mu.Unlock()
	g.wg.Wait()
}
