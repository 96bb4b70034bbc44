package watch

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

const (
	// maxContacts is the maximum number of API server addresses to keep: a name can resolve to different addresses each time.
	maxContacts    = 16
	resolveTimeout = 2 * time.Second
	// resolveInterval is the interval between lookups of the name while the connection stays open.
	resolveInterval = time.Minute
)

// contacts records the addresses of the API server: all addresses that its name resolves to, and the connected address. A failed lookup
// removes no address.
type contacts struct {
	lookup func(ctx context.Context, network, host string) ([]netip.Addr, error)
	// changed is called with the sorted addresses whenever they change.
	changed func([]netip.AddrPort)

	mu sync.Mutex
	// dialed is the host and port of the API server or proxy that was dialed last.
	dialed    string
	connected netip.AddrPort
	// recent are the latest addresses that the name resolved to, oldest first.
	recent    []netip.AddrPort
	published []netip.AddrPort
}

func newContacts(changed func([]netip.AddrPort)) *contacts {
	return &contacts{lookup: net.DefaultResolver.LookupNetIP, changed: changed}
}

type dialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

// wrap returns a dialer that records each address before dialing it. A Service that has claimed the address releases it before the next
// attempt.
func (c *contacts) wrap(dial dialFunc) dialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c.resolve(ctx, address)
		conn, err := dial(ctx, network, address)
		if err == nil {
			c.connect(conn.RemoteAddr())
		}
		return conn, err
	}
}

func (c *contacts) refresh(ctx context.Context, every time.Duration) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		c.mu.Lock()
		address := c.dialed
		c.mu.Unlock()
		if address != "" {
			c.resolve(ctx, address)
		}
	}
}

func (c *contacts) resolve(ctx context.Context, address string) {
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	host, service, err := net.SplitHostPort(address)
	if err != nil {
		return
	}
	port, err := net.DefaultResolver.LookupPort(ctx, "tcp", service)
	if err != nil {
		return
	}
	addrs, err := c.lookup(ctx, "ip", host) // an address resolves to itself
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dialed = address
	if err != nil {
		return
	}
	for _, a := range addrs[:min(len(addrs), maxContacts)] {
		at := netip.AddrPortFrom(a.Unmap().WithZone(""), uint16(port))
		c.recent = append(slices.DeleteFunc(c.recent, func(b netip.AddrPort) bool { return b == at }), at)
	}
	c.recent = slices.Delete(c.recent, 0, max(0, len(c.recent)-maxContacts))
	c.publish()
}

func (c *contacts) connect(remote net.Addr) {
	tcp, ok := remote.(*net.TCPAddr)
	if !ok {
		return
	}
	at := tcp.AddrPort()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.connected = netip.AddrPortFrom(at.Addr().Unmap().WithZone(""), at.Port())
	c.publish()
}

// Contacts returns the known addresses of the API server.
func (a *API) Contacts() []netip.AddrPort {
	a.contacts.mu.Lock()
	defer a.contacts.mu.Unlock()
	return slices.Clone(a.contacts.published)
}

func (c *contacts) publish() {
	all := slices.Clone(c.recent)
	if c.connected.IsValid() {
		all = append(all, c.connected)
	}
	slices.SortFunc(all, netip.AddrPort.Compare)
	if all = slices.Compact(all); !slices.Equal(all, c.published) {
		c.published = all
		c.changed(all)
	}
}
