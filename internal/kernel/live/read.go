package live

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/netdev"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// reader is not safe for concurrent use.
type reader struct {
	setPrefix string
	sysctls   []string
	balancer  servers
	sets      sets
	netdev    *netdev.Backend
	rules     rules
	// members and servers read all sets and virtual servers. Only a reader that reads repeatedly uses the fields below.
	members      members
	membersAgain members
	servers      readServers
	serversAgain readServers
	// mayMiss is true if the function members may omit members of a set.
	mayMiss bool
}

func newReader(cfg Config, rules rules, openDevice func() (*netdev.Backend, error)) (reader, error) {
	r := reader{setPrefix: cfg.SetPrefix, sysctls: cfg.Sysctls, rules: rules}
	var errs [3]error
	r.balancer, r.serversAgain, errs[0] = openServers(cfg)
	r.sets, r.members, r.membersAgain, errs[1] = openSets(cfg)
	r.netdev, errs[2] = openDevice()
	if err := errors.Join(errs[:]...); err != nil {
		return r, err
	}
	r.servers = r.balancer.Read
	return r, nil
}

func (r *reader) close() error {
	var errs []error
	if r.balancer != nil {
		errs = append(errs, r.balancer.Close())
	}
	if r.sets != nil {
		errs = append(errs, r.sets.Close())
	}
	if r.netdev != nil {
		errs = append(errs, r.netdev.Close())
	}
	return errors.Join(errs...)
}

func (r *reader) stats() nlbatch.Stats { return add(r.balancer.Stats(), r.sets.Stats()) }

// rules reads and writes the rules of all families. Read returns either the rules of a family or an error for it. Methods may be called
// concurrently.
type rules interface {
	Read(context.Context) (map[inet.Family]kernel.RulesView, kernel.RulesError)
	Apply(context.Context, []kernel.Op) []error
}

// taken serializes access to the nftables rules from several goroutines.
type taken struct {
	mu       sync.Mutex
	nft      *nft.Backend
	families []inet.Family
}

func (t *taken) Read(ctx context.Context) (map[inet.Family]kernel.RulesView, kernel.RulesError) {
	t.mu.Lock()
	defer t.mu.Unlock()
	views, err := t.nft.Read(ctx)
	if err == nil {
		return views, nil
	}
	errs := kernel.RulesError{}
	for _, f := range t.families {
		errs[f] = err
	}
	return nil, errs
}

func (t *taken) Apply(ctx context.Context, ops []kernel.Op) []error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.nft.Apply(ctx, ops)
}

// Read returns everything that the agent owns, and all virtual servers. On error, the state is nil. Otherwise it is complete, except that
// the rules of a family may be missing; RulesErr then contains the reason.
func (r *reader) Read(ctx context.Context) (*kernel.State, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("read the kernel: %w", err)
	}
	s := &kernel.State{MayMiss: r.mayMiss}
	var err error
	if s.Sysctls, err = r.netdev.ReadSysctls(ctx, r.sysctls); err != nil {
		return nil, err
	}
	if s.Device, s.Addresses, err = r.netdev.ReadDevice(ctx); err != nil {
		return nil, err
	}
	if s.Sets, s.Members, err = r.members(ctx, r.setPrefix); err != nil {
		return nil, err
	}
	s.Rules, s.RulesErr = r.rules.Read(ctx)
	if s.Servers, err = r.servers(ctx); err != nil {
		return nil, err
	}
	if s.Timeouts, err = r.balancer.Timeouts(ctx); err != nil {
		return nil, err
	}
	return s, nil
}

// LookupMembers returns the given members that exist.
func (r *reader) LookupMembers(ctx context.Context, members []kernel.Member) (map[kernel.Member]struct{}, error) {
	return r.sets.LookupMembers(ctx, members)
}

// Lookup returns the given virtual servers that exist.
func (r *reader) Lookup(ctx context.Context, keys []kernel.ServerKey) (map[kernel.ServerKey]kernel.ObservedServer, error) {
	return r.balancer.Lookup(ctx, keys)
}
