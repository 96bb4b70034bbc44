package cluster

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// Families selects the IP families of a cluster.
type Families int

// The families of a cluster.
const (
	DualStack Families = iota
	IPv4Only
	IPv6Only
)

// Family is one IP family.
type Family int

// The two families.
const (
	V4 Family = 4
	V6 Family = 6
)

func (f Family) String() string { return fmt.Sprintf("IPv%d", int(f)) }

// Config describes a cluster. The zero value is usable.
type Config struct {
	Name     string   // prefix of the namespaces' names
	Nodes    int      // default 2
	Clients  int      // hosts outside the cluster; default 1, negative for none
	Families Families // default dual-stack

	// Bridge connects pods to a bridge, cni0, with hairpin ports, instead of giving each pod a routed veth pair.
	Bridge bool

	// RPFilter is the nodes' net.ipv4.conf.all.rp_filter: 0 (default), 1 or 2.
	RPFilter int
}

// Cluster is a running cluster.
type Cluster struct {
	Config  Config
	Prefix  string // prefix of the names under /run/netns
	Router  *Host
	Nodes   []*Node  // node-1, node-2, ...
	Clients []*Host  // client-1, ..., outside the cluster behind the router
	Service Prefixes // the Service range

	spawner *spawner
	release func()

	mu     sync.Mutex
	hosts  []*Host
	closed bool
	close  sync.Once
	err    error
}

// Prefixes contains a range for each family. The range is zero if the cluster lacks the family.
type Prefixes struct{ V4, V6 netip.Prefix }

// Host is a network namespace with one address of each family.
type Host struct {
	Name   string
	V4, V6 netip.Addr // invalid if the cluster lacks the family

	cluster *Cluster
	ns      *namespace

	mu     sync.Mutex
	owned  map[owned]struct{}             // processes, servers, connections, flows
	asked  map[[2]netip.AddrPort]struct{} // address pairs that it has used for UDP
	closed bool
}

// owned is a resource that must be closed before its host is removed.
type owned interface{ abort() }

// Node is a cluster node.
type Node struct {
	*Host
	Index   int // from 1
	PodCIDR Prefixes

	pods int // number of pods created so far
}

// Pod is a pod with its own network. For pods on the host's network, use the Node.
type Pod struct {
	*Host
	Node *Node
	Veth string // its interface on the node
}

// T is the part of testing.TB that the helpers need.
type T interface {
	Helper()
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

var errClosed = errors.New("the cluster or host is closed")

// New creates a cluster for one test. If the test fails, New writes the nodes' state to $LAB_OUT or to the test's
// log.
func New(t testing.TB, config Config) *Cluster {
	t.Helper()
	if config.Name == "" {
		config.Name = t.Name()
	}
	c, err := Create(config)
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("removing the cluster: %v", err)
		}
	})
	c.DumpIfFailed(t)
	return c
}

// DumpIfFailed writes the cluster's state if the test failed. It is for tests that share a cluster.
func (c *Cluster) DumpIfFailed(t testing.TB) {
	t.Cleanup(func() {
		if t.Failed() {
			c.dumpFor(t)
		}
	})
}

// Create creates a cluster.
func Create(config Config) (_ *Cluster, err error) {
	if config.Nodes == 0 {
		config.Nodes = 2
	}
	if config.Clients == 0 {
		config.Clients = 1
	}
	if config.Nodes < 0 || config.Nodes > maxHosts || config.Clients > maxHosts {
		return nil, fmt.Errorf("cluster: at most %d nodes and clients", maxHosts)
	}
	if config.RPFilter < 0 || config.RPFilter > 2 || config.Families < DualStack || config.Families > IPv6Only {
		return nil, fmt.Errorf("cluster: RPFilter %d, Families %d: invalid value", config.RPFilter, config.Families)
	}
	c := &Cluster{Config: config}
	c.Prefix = uniquePrefix(config.Name)
	if err := prepareNames(); err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	if c.release, err = claimPrefix(c.Prefix); err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	c.spawner = newSpawner()
	if err := c.build(); err != nil {
		return nil, errors.Join(fmt.Errorf("cluster: %w", err), c.Close())
	}
	return c, nil
}

func uniquePrefix(name string) string {
	clean := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		}
		return '_'
	}, strings.TrimPrefix(name, "Test"))
	if len(clean) > 24 {
		clean = clean[:24]
	}
	random := make([]byte, 4)
	_, _ = rand.Read(random)
	return "kipvs-" + clean + "-" + hex.EncodeToString(random)
}

// Close stops every process, connection and server, and removes every namespace.
func (c *Cluster) Close() error {
	c.close.Do(func() {
		c.mu.Lock()
		c.closed = true
		hosts := c.hosts
		c.hosts = nil
		c.mu.Unlock()
		c.err = removeHosts(hosts)
		c.spawner.stop()
		c.release()
	})
	return c.err
}

// removeHosts first stops everything that runs on the hosts, so that no agent sees a half-removed node.
func removeHosts(hosts []*Host) error {
	var wg sync.WaitGroup
	for _, h := range hosts {
		wg.Go(h.end)
	}
	wg.Wait()
	inodes := map[uint64]bool{}
	var errs []error
	for _, h := range hosts {
		ino, err := h.ns.inode()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		inodes[ino] = true
	}
	errs = append(errs, killWithin(inodes))
	for _, h := range hosts {
		errs = append(errs, h.ns.remove())
	}
	return errors.Join(errs...)
}

func (h *Host) end() {
	h.mu.Lock()
	h.closed = true
	all := h.owned
	h.owned = nil
	h.mu.Unlock()
	var wg sync.WaitGroup
	for o := range all {
		wg.Go(o.abort)
	}
	wg.Wait()
}

func (c *Cluster) newHost(name string) (*Host, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errClosed
	}
	if c.find(name) != nil {
		return nil, fmt.Errorf("host %q already exists", name)
	}
	ns, err := newNamespace(c.Prefix + "-" + name)
	if err != nil {
		return nil, err
	}
	h := &Host{Name: name, cluster: c, ns: ns, owned: map[owned]struct{}{}, asked: map[[2]netip.AddrPort]struct{}{}}
	c.hosts = append(c.hosts, h)
	return h, nil
}

// Host returns the named host, or nil.
func (c *Cluster) Host(name string) *Host {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.find(name)
}

func (c *Cluster) find(name string) *Host {
	for _, h := range c.hosts {
		if h.Name == name {
			return h
		}
	}
	return nil
}

func (c *Cluster) removeHost(h *Host) error {
	c.mu.Lock()
	found := false
	for i, other := range c.hosts {
		if other == h {
			c.hosts = append(c.hosts[:i:i], c.hosts[i+1:]...)
			found = true
			break
		}
	}
	c.mu.Unlock()
	if !found {
		return nil
	}
	return removeHosts([]*Host{h})
}

func (h *Host) own(o owned) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return errClosed
	}
	h.owned[o] = struct{}{}
	return nil
}

func (h *Host) disown(o owned) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.owned, o)
}

// FamilyList returns the cluster's families, IPv4 first.
func (c *Cluster) FamilyList() []Family {
	switch c.Config.Families {
	case IPv4Only:
		return []Family{V4}
	case IPv6Only:
		return []Family{V6}
	}
	return []Family{V4, V6}
}

func (c *Cluster) has(f Family) bool {
	return f == V4 && c.Config.Families != IPv6Only || f == V6 && c.Config.Families != IPv4Only
}

// Addr returns the host's address in a family.
func (h *Host) Addr(f Family) netip.Addr {
	if f == V6 {
		return h.V6
	}
	return h.V4
}

// At returns the host's "address:port", for Get and other methods.
func (h *Host) At(f Family, port uint16) string {
	return netip.AddrPortFrom(h.Addr(f), port).String()
}

// Addr returns the n-th address of a family's range.
func (p Prefixes) Addr(f Family, n int) netip.Addr {
	base := p.V4
	if f == V6 {
		base = p.V6
	}
	return nth(base, n)
}

func nth(p netip.Prefix, n int) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i := len(b) - 1; i >= 0 && n > 0; i-- {
		n += int(b[i])
		b[i] = byte(n)
		n >>= 8
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

func (h *Host) String() string { return h.Name }

// Namespace returns the name of the host's namespace, for `ip netns exec`.
func (h *Host) Namespace() string { return h.cluster.Prefix + "-" + h.Name }

// NamespacePath returns the path of the host's network namespace.
func (h *Host) NamespacePath() string { return filepath.Join(namesDir, h.Namespace()) }

// Do runs fn on a thread inside the host's namespace. Goroutines that fn starts run outside the namespace, and fn
// must not end the test (Fatal, FailNow).
func (h *Host) Do(fn func() error) error { return h.ns.do(fn) }

// SetSysctl writes a sysctl in the namespace, such as "net.ipv4.ip_forward" or "net/ipv4/conf/eth0.1/forwarding".
func (h *Host) SetSysctl(key, value string) error {
	return h.Do(func() error { return writeSysctl(key, value) })
}

// Sysctl reads a sysctl in the namespace.
func (h *Host) Sysctl(key string) (string, error) {
	var value []byte
	err := h.Do(func() (err error) {
		value, err = os.ReadFile(sysctlPath(key))
		return err
	})
	return string(bytes.TrimSpace(value)), err
}

func sysctlPath(key string) string {
	if !strings.Contains(key, "/") {
		key = strings.ReplaceAll(key, ".", "/")
	}
	return "/proc/sys/" + key
}

func writeSysctl(key, value string) error {
	return os.WriteFile(sysctlPath(key), []byte(value), 0)
}

// Eventually retries fn until it returns nil. After the time limit, it fails the test with fn's last error.
func Eventually(t T, within time.Duration, what string, fn func() error) {
	t.Helper()
	if err := Poll(within, fn); err != nil {
		t.Fatalf("not within %v: %s: %v", within, what, err)
	}
}

// Poll is like Eventually, but returns the last error. The longer it waits, the less often it calls fn.
func Poll(within time.Duration, fn func() error) error {
	began := time.Now()
	deadline := began.Add(within)
	for pause := time.Millisecond; ; pause = min(2*pause, max(100*time.Millisecond, time.Since(began)/10)) {
		err := fn()
		if err == nil {
			return nil
		}
		left := time.Until(deadline)
		if left <= 0 {
			return err
		}
		time.Sleep(min(pause, left))
	}
}
