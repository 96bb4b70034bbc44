package healthport

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

type binding struct {
	service model.ServiceID
	addr    netip.AddrPort
}

func (b binding) compare(o binding) int {
	return cmp.Or(b.service.Compare(o.service), b.addr.Compare(o.addr))
}

type failure struct {
	err   error
	wait  time.Duration
	retry time.Time
}

// settle closes unwanted listeners and opens wanted ones. It returns the time of the next retry, or zero if nothing
// failed.
func (p *Ports) settle(ctx context.Context) time.Time {
	wanted := p.bindings()
	freed := p.closeUnwanted(wanted)
	now := time.Now()
	for _, at := range wanted {
		f := p.failed[at]
		if p.open[at] != nil || f != nil && now.Before(f.retry) && !freed[at.addr] {
			continue
		}
		p.try(ctx, at)
	}
	if ctx.Err() != nil {
		return time.Time{} // stopping is not a failure
	}
	p.report(wanted)
	return p.nextRetry()
}

func (p *Ports) bindings() []binding {
	p.mu.Lock()
	defer p.mu.Unlock()
	all := make([]binding, 0, len(p.wanted)*len(p.addresses))
	for id, port := range p.wanted {
		for _, addr := range p.addresses {
			all = append(all, binding{id, netip.AddrPortFrom(addr, port.Number)})
		}
	}
	slices.SortFunc(all, binding.compare)
	return all
}

// closeUnwanted runs before any listener is opened, so a Service can use a port that another one frees. It returns the
// freed addresses.
func (p *Ports) closeUnwanted(bindings []binding) (freed map[netip.AddrPort]bool) {
	wanted := make(map[binding]bool, len(bindings))
	for _, at := range bindings {
		wanted[at] = true
	}
	freed = map[netip.AddrPort]bool{}
	for at, l := range p.open {
		switch {
		case !wanted[at]:
			p.close(at)
			freed[at.addr] = true
		case l.broken():
			p.close(at)
			p.fail(at, errors.New("the socket failed"))
		}
	}
	for at := range p.failed {
		if !wanted[at] {
			delete(p.failed, at)
		}
	}
	return freed
}

func (p *Ports) try(ctx context.Context, at binding) {
	l, err := p.openListener(ctx, at)
	if err == nil {
		p.open[at] = l
		delete(p.failed, at)
		p.cfg.Log.Debug("answering health checks", zap.Stringer("service", at.service), zap.Stringer("address", at.addr))
		return
	}
	p.fail(at, p.explain(at, err))
}

func (p *Ports) fail(at binding, err error) {
	wait := p.retry
	if before := p.failed[at]; before != nil {
		wait = min(2*before.wait, retryMax)
	}
	p.failed[at] = &failure{err, wait, time.Now().Add(wait)}
}

// explain adds the owner of a port in use, if known.
func (p *Ports) explain(at binding, err error) error {
	var failed *net.OpError
	if errors.As(err, &failed) {
		err = failed.Err // without the address, which report adds
	}
	if !errors.Is(err, syscall.EADDRINUSE) {
		return err
	}
	for other := range p.open {
		if other.addr == at.addr {
			return fmt.Errorf("Service %s has the same healthCheckNodePort; use another one", other.service)
		}
	}
	return fmt.Errorf("another program uses this port (find it with: ss -ltnp sport = :%d): %w", at.addr.Port(), err)
}

func (p *Ports) report(bindings []binding) {
	failures := map[model.ServiceID][]string{}
	services := map[model.ServiceID]bool{}
	for _, at := range bindings {
		services[at.service] = true
		if f := p.failed[at]; f != nil {
			failures[at.service] = append(failures[at.service], fmt.Sprintf("%s: %v", at.addr, f.err))
		}
	}
	p.cfg.Counted(len(services)-len(failures), len(failures)) // first, so that the count is correct when a failure is reported
	for id := range p.reported {
		if failures[id] == nil {
			delete(p.reported, id)
			p.cfg.Log.Info("health check port recovered or removed", zap.Stringer("service", id))
			p.cfg.Failed(id, nil)
		}
	}
	for id, list := range failures {
		text := strings.Join(list, "; ")
		if p.reported[id] == text {
			continue
		}
		p.reported[id] = text
		err := errors.New(text)
		p.cfg.Log.Error("health check port not listening; load balancers will not use this node; retrying",
			zap.Stringer("service", id), zap.Error(err))
		p.cfg.Failed(id, err)
	}
}

func (p *Ports) nextRetry() time.Time {
	var next time.Time
	for _, f := range p.failed {
		if next.IsZero() || f.retry.Before(next) {
			next = f.retry
		}
	}
	return next
}

func (p *Ports) close(at binding) {
	p.open[at].close()
	delete(p.open, at)
}

func (p *Ports) closeAll() {
	for at := range p.open {
		p.close(at)
	}
}
