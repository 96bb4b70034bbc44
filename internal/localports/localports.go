// Package localports keeps the kernel from choosing a node port as the source port of one of this node's own connections. IPVS would take
// the reply for the first packet of a new client, and send it to an endpoint of the node port's Service.
//
// The guard adds node ports in net.ipv4.ip_local_port_range to net.ipv4.ip_local_reserved_ports. A file records which ports it added, so
// that it never removes another program's. Like the sysctl, the file does not survive a reboot.
//
// May import: kernel, model and rundir.
package localports

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// Host gives access to the sysctls and the record. The zero value has neither: a guard of it does nothing.
type Host struct {
	// Range returns the ports that the kernel chooses from. Reserved returns the ports that it does not choose, and Reserve replaces them.
	Range, Reserved func() (kernel.Ports, error)
	Reserve         func(kernel.Ports) error
	// Record returns the path of the file that lists the ports that a guard has added.
	Record func() (string, error)
}

// Guard reserves node ports.
type Guard struct {
	host   Host
	active func() bool
	wake   chan struct{}

	mu     sync.Mutex
	ports  map[model.ServiceID][]model.LoopbackPort
	synced bool
}

// NewGuard returns a guard that changes nothing until Run is called. While active returns false, it reserves no ports, and releases those
// that a guard has added.
func NewGuard(host Host, active func() bool) *Guard {
	return &Guard{host: host, active: active, wake: make(chan struct{}, 1), ports: map[model.ServiceID][]model.LoopbackPort{}}
}

// Update sets the node ports of the Services in the map. The ports of other Services do not change. The guard waits for the first
// complete sync, which reports all Services. Every further complete sync makes it look at the sysctls again. Update never blocks.
func (g *Guard) Update(ports map[model.ServiceID][]model.LoopbackPort, complete bool) {
	g.mu.Lock()
	changed := complete
	for id, list := range ports {
		if slices.Equal(g.ports[id], list) {
			continue
		}
		if changed = true; len(list) == 0 {
			delete(g.ports, id)
		} else {
			g.ports[id] = list
		}
	}
	g.synced = g.synced || complete
	changed = changed && g.synced
	g.mu.Unlock()
	if !changed {
		return
	}
	select {
	case g.wake <- struct{}{}:
	default: // awake already
	}
}

// Run keeps node ports reserved until the context ends. After that, they stay reserved, because the kernel keeps serving. Run calls
// report when it has changed the reserved ports, and when it starts or stops failing.
func (g *Guard) Run(ctx context.Context, report func(ours kernel.Ports, err error)) {
	failed := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-g.wake:
		}
		ours, changed, err := g.host.settle(g.wanted())
		now := ""
		if err != nil {
			now = err.Error()
		}
		if changed || now != failed {
			report(ours, err)
		}
		failed = now
	}
}

func (g *Guard) wanted() (ports kernel.Ports) {
	if !g.active() {
		return nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, list := range g.ports {
		for _, p := range list {
			ports = append(ports, kernel.PortRange{First: p.Number, Last: p.Number})
		}
	}
	return ports
}

// Added returns the ports that a guard has added and that are still reserved.
func (h Host) Added() (kernel.Ports, error) {
	if h.Record == nil {
		return nil, nil
	}
	_, recorded, err := h.recorded()
	if err != nil || len(recorded) == 0 {
		return nil, err
	}
	reserved, err := h.Reserved()
	return recorded.Common(reserved), err
}

// Release removes the ports that a guard has added.
func (h Host) Release() error {
	_, _, err := h.settle(nil)
	return err
}

// settle reserves the node ports that the kernel may choose, and releases other ports that an earlier call has added.
func (h Host) settle(nodePorts kernel.Ports) (ours kernel.Ports, changed bool, err error) {
	if h.Record == nil {
		return nil, false, nil
	}
	record, recorded, err := h.recorded()
	if err != nil {
		return nil, false, err
	}
	wanted, err := h.wanted(nodePorts)
	if err != nil || len(wanted) == 0 && len(recorded) == 0 {
		return nil, false, err
	}
	reserved, err := h.Reserved()
	if err != nil {
		return nil, false, err
	}
	all, ours := merge(reserved, recorded, wanted)
	if !slices.Equal(all, reserved.With(nil)) {
		// The record lists a port while it may be reserved. After a kill, it may list ports that are not reserved; the next call ignores
		// them.
		if err := write(record, recorded.With(ours)); err != nil {
			return nil, false, err
		}
		if err := h.Reserve(all); err != nil {
			return nil, false, errors.Join(err, h.undo(record, recorded, reserved))
		}
		changed = true
	}
	if !changed && slices.Equal(ours, recorded) {
		return ours, false, nil
	}
	return ours, changed, write(record, ours)
}

// undo restores the record after a refused write, so that ports that an administrator reserves later do not count as ours. If the kernel has
// taken a part of the list, the record stays.
func (h Host) undo(record string, recorded, reserved kernel.Ports) error {
	now, err := h.Reserved()
	if err != nil || !slices.Equal(now, reserved) {
		return err
	}
	return write(record, recorded)
}

// wanted returns the node ports that the kernel may choose.
func (h Host) wanted(nodePorts kernel.Ports) (kernel.Ports, error) {
	if len(nodePorts) == 0 {
		return nil, nil
	}
	chosen, err := h.Range()
	return nodePorts.Common(chosen), err
}

// merge returns the ports to reserve, and the ones among them that are ours. Of the ports in the record, another program may have
// removed some. A wanted port that another program has reserved is not ours.
func merge(reserved, recorded, wanted kernel.Ports) (all, ours kernel.Ports) {
	others := reserved.Without(recorded)
	ours = wanted.Without(others).With(nil)
	return others.With(ours), ours
}
