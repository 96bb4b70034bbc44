package watch

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/kube-ipvs/kube-ipvs/internal/watch/watchtest"
)

// The API server's addresses are the connected address and all addresses that its name resolves to. They change when the name resolves to
// different addresses, and stay the same while the name cannot be resolved.
func TestContacts(t *testing.T) {
	var published []netip.AddrPort
	var resolved []string
	var failing error
	c := newContacts(func(addrs []netip.AddrPort) { published = addrs })
	c.lookup = func(context.Context, string, string) ([]netip.Addr, error) {
		var addrs []netip.Addr
		for _, a := range resolved {
			addrs = append(addrs, netip.MustParseAddr(a))
		}
		return addrs, failing
	}
	dial := c.wrap(func(context.Context, string, string) (net.Conn, error) {
		if len(published) == 0 && failing == nil {
			t.Error("dialed before the addresses were known")
		}
		return remote{}, nil
	})
	expect := func(want ...string) {
		t.Helper()
		var got []string
		for _, a := range published {
			got = append(got, a.String())
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	resolved = []string{"203.0.113.2", "::ffff:203.0.113.1"}
	if _, err := dial(t.Context(), "tcp", "api.example:6443"); err != nil {
		t.Fatal(err)
	}
	expect("198.51.100.9:8443", "203.0.113.1:6443", "203.0.113.2:6443")
	resolved, failing = nil, errors.New("no such host")
	c.resolve(t.Context(), "api.example:6443")
	expect("198.51.100.9:8443", "203.0.113.1:6443", "203.0.113.2:6443")
	failing = nil
	for i := range 2 * maxContacts {
		resolved = []string{netip.AddrFrom4([4]byte{203, 0, 113, byte(100 + i)}).String()}
		c.resolve(t.Context(), "api.example:6443")
	}
	if len(published) != maxContacts+1 || !slices.Contains(published, netip.MustParseAddrPort("198.51.100.9:8443")) {
		t.Errorf("published %v, want the %d latest addresses and the connected one", published, maxContacts)
	}
}

type remote struct{ net.Conn }

func (remote) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(198, 51, 100, 9), Port: 8443} }

// The name is looked up again while a connection stays open.
func TestContactsAreRefreshed(t *testing.T) {
	looked := make(chan struct{}, 100)
	c := newContacts(func([]netip.AddrPort) {})
	c.lookup = func(context.Context, string, string) ([]netip.Addr, error) {
		looked <- struct{}{}
		return nil, nil
	}
	c.resolve(t.Context(), "api.example:6443")
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { c.refresh(ctx, time.Millisecond); close(ended) }()
	for range 3 {
		<-looked
	}
	stop()
	<-ended
}

// The source reports the API server's addresses no later than the listed objects.
func TestAPIReportsServerAddresses(t *testing.T) {
	server := watchtest.New(t)
	at := server.Start().Listener.Addr().(*net.TCPAddr).AddrPort()
	_, port, _ := net.SplitHostPort(at.String())
	api := mustAPI(t, &rest.Config{Host: "https://localhost:" + port, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}, quick())
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { _ = api.Run(ctx); close(ended) }()
	for !api.Synced() {
		<-api.Changed()
	}
	if changes := api.Take(); !slices.Contains(changes.APIServer, at) {
		t.Errorf("got API server addresses %v, want %v", changes.APIServer, at)
	}
	if changes := api.Take(); changes.APIServer != nil {
		t.Errorf("Take returned the unchanged addresses %v again", changes.APIServer)
	}
	stop()
	<-ended
}
