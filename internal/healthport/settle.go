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

// place is where the health checks of a Service are answered.
type place struct {
	service model.ServiceID
	at      netip.AddrPort
}

func (p place) compare(o place) int {
	return cmp.Or(p.service.Compare(o.service), p.at.Compare(o.at))
}

// failure is a place where listening did not work.
type failure struct {
	err   error
	wait  time.Duration
	retry time.Time
}

// settle opens what is wanted and closes what is not. It returns when to try again what did not work; zero if all did.
func (p *Ports) settle(ctx context.Context) time.Time {
	places := p.places()
	freed := p.closeUnwanted(places)
	now := time.Now()
	for _, at := range places {
		f := p.failed[at]
		if p.open[at] != nil || f != nil && now.Before(f.retry) && !freed[at.at] {
			continue
		}
		p.try(ctx, at)
	}
	if ctx.Err() != nil {
		return time.Time{} // asked to stop: what failed because of that is no failure
	}
	p.tell(places)
	return p.nextRetry()
}

// places lists where to listen, sorted.
func (p *Ports) places() []place {
	p.mu.Lock()
	defer p.mu.Unlock()
	places := make([]place, 0, len(p.wanted)*len(p.addresses))
	for id, port := range p.wanted {
		for _, addr := range p.addresses {
			places = append(places, place{id, netip.AddrPortFrom(addr, port.Number)})
		}
	}
	slices.SortFunc(places, place.compare)
	return places
}

// closeUnwanted comes before anything is opened: what one Service leaves another may take. It says which places are free now.
func (p *Ports) closeUnwanted(places []place) (freed map[netip.AddrPort]bool) {
	wanted := make(map[place]bool, len(places))
	for _, at := range places {
		wanted[at] = true
	}
	freed = map[netip.AddrPort]bool{}
	for at, l := range p.open {
		switch {
		case !wanted[at]:
			p.close(at)
			freed[at.at] = true
		case l.broken():
			p.close(at)
			p.fail(at, errors.New("the socket broke"))
		}
	}
	for at := range p.failed {
		if !wanted[at] {
			delete(p.failed, at)
		}
	}
	return freed
}

// try opens a place, or notes why it cannot be opened and when to try again.
func (p *Ports) try(ctx context.Context, at place) {
	l, err := p.openListener(ctx, at)
	if err == nil {
		p.open[at] = l
		delete(p.failed, at)
		p.cfg.Log.Debug("answering health checks", zap.Stringer("service", at.service), zap.Stringer("address", at.at))
		return
	}
	p.fail(at, p.explain(at, err))
}

func (p *Ports) fail(at place, err error) {
	wait := p.retry
	if before := p.failed[at]; before != nil {
		wait = min(2*before.wait, retryMax)
	}
	p.failed[at] = &failure{err, wait, time.Now().Add(wait)}
}

// explain says who has a port that is taken, as far as we know.
func (p *Ports) explain(at place, err error) error {
	var failed *net.OpError
	if errors.As(err, &failed) {
		err = failed.Err // without the address, which is told anyway
	}
	if !errors.Is(err, syscall.EADDRINUSE) {
		return err
	}
	for other := range p.open {
		if other.at == at.at {
			return fmt.Errorf("this is the health check port of Service %s already; give one of them another", other.service)
		}
	}
	return fmt.Errorf("another program has this port, and \"ss -ltnp sport = :%d\" names it: %w", at.at.Port(), err)
}

// tell tells of each Service whose state has changed.
func (p *Ports) tell(places []place) {
	why := map[model.ServiceID][]string{}
	services := map[model.ServiceID]bool{}
	for _, at := range places {
		services[at.service] = true
		if f := p.failed[at]; f != nil {
			why[at.service] = append(why[at.service], fmt.Sprintf("%s: %v", at.at, f.err))
		}
	}
	for id := range p.told {
		if why[id] == nil {
			delete(p.told, id)
			p.cfg.Log.Info("health checks are answered again, or not wanted any more", zap.Stringer("service", id))
			p.cfg.Failed(id, "")
		}
	}
	for id, reasons := range why {
		if text := strings.Join(reasons, "; "); p.told[id] != text {
			p.told[id] = text
			p.cfg.Log.Error("health checks of a Service are not answered, so that load balancers will not use this node; trying again",
				zap.Stringer("service", id), zap.String("because", text))
			p.cfg.Failed(id, text)
		}
	}
	p.cfg.Counted(len(services)-len(why), len(why))
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

func (p *Ports) close(at place) {
	p.open[at].close()
	delete(p.open, at)
}

func (p *Ports) closeAll() {
	for at := range p.open {
		p.close(at)
	}
}
