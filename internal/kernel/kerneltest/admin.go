package kerneltest

import (
	"fmt"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// The admin's operations on the fake follow the same rules as the agent's, but they are not counted, never hit injected faults, and do not
// call the hook.
var _ Admin = (*Fake)(nil)

func (f *Fake) admin(verb kernel.Verb, objects ...kernel.Object) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, object := range objects {
		if err := f.try(kernel.Op{Verb: verb, Object: object}); err != nil {
			return err
		}
	}
	return nil
}

// AddServer implements Admin.
func (f *Fake) AddServer(s kernel.Server, destinations ...kernel.Destination) error {
	objects := []kernel.Object{s}
	for _, d := range destinations {
		objects = append(objects, kernel.ServerDestination{Server: s.Key, Destination: d})
	}
	return f.admin(kernel.Create, objects...)
}

// DelServer implements Admin.
func (f *Fake) DelServer(key kernel.ServerKey) error {
	return f.admin(kernel.Delete, kernel.Server{Key: key})
}

// ClearServers does what ipvsadm -C does.
func (f *Fake) ClearServers() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.servers)
	return nil
}

// SetForwarding gives a destination a forwarding method that kube-ipvs does not use.
func (f *Fake) SetForwarding(d kernel.ServerDestination, how kernel.Forwarding) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.servers[d.Server]
	if s == nil {
		return fmt.Errorf("%s: %w", d.Server, kernel.ErrNotFound)
	}
	have, ok := s.Destination(d.Addr)
	if !ok {
		return fmt.Errorf("%s: %w", d, kernel.ErrNotFound)
	}
	have.Forwarding = how
	s.store(have)
	return nil
}

// AddDestination does what ipvsadm -a does.
func (f *Fake) AddDestination(d kernel.ServerDestination) error { return f.admin(kernel.Create, d) }

// DelDestination does what ipvsadm -d does.
func (f *Fake) DelDestination(d kernel.ServerDestination) error { return f.admin(kernel.Delete, d) }

// CreateSet implements Admin. The set may have an unknown type or extensions ("hash:ip comment"); reads then omit its members.
func (f *Fake) CreateSet(s kernel.Set) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.makeSet(s)
}

// AddMember does what ipset add does.
func (f *Fake) AddMember(m kernel.Member) error { return f.admin(kernel.Create, m) }

// DelMember does what ipset del does.
func (f *Fake) DelMember(m kernel.Member) error { return f.admin(kernel.Delete, m) }

// FlushSet implements Admin.
func (f *Fake) FlushSet(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.sets[name] == nil {
		return fmt.Errorf("set %s: %w", name, kernel.ErrNotFound)
	}
	f.sets[name].clear()
	return nil
}

// DestroySet implements Admin.
func (f *Fake) DestroySet(name string) error {
	return f.admin(kernel.Delete, kernel.Set{Name: name})
}

// DelDevice implements Admin.
func (f *Fake) DelDevice() error { return f.admin(kernel.Delete, kernel.DummyDevice{}) }

// AddAddress does what ip addr add does.
func (f *Fake) AddAddress(a kernel.BoundAddress) error { return f.admin(kernel.Create, a) }

// DelAddress implements Admin.
func (f *Fake) DelAddress(a kernel.BoundAddress) error { return f.admin(kernel.Delete, a) }

// SetSysctl implements Admin.
func (f *Fake) SetSysctl(s kernel.SysctlSetting) error { return f.admin(kernel.Ensure, s) }

// FlushChain implements Admin.
func (f *Fake) FlushChain(family inet.Family, id kernel.ChainID) error {
	return f.edit(family, id, func([]line) []line { return nil })
}

// AppendRule implements Admin.
func (f *Fake) AppendRule(family inet.Family, id kernel.ChainID, args ...string) error {
	return f.appendLine(family, id, line{args: args, foreign: true})
}

// InsertRule implements Admin.
func (f *Fake) InsertRule(family inet.Family, id kernel.ChainID, args ...string) error {
	l := line{args: args, foreign: true}
	return f.edit(family, id, func(lines []line) []line { return slices.Insert(slices.Clone(lines), 0, l) })
}

func (f *Fake) appendLine(family inet.Family, id kernel.ChainID, l line) error {
	return f.edit(family, id, func(lines []line) []line { return append(slices.Clone(lines), l) })
}

func (f *Fake) newChain(family inet.Family, id kernel.ChainID) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.tables[family][id]; ok {
		return fmt.Errorf("chain %s: %w", id, kernel.ErrExists)
	}
	f.setChain(family, id, nil)
	return nil
}

func (f *Fake) edit(family inet.Family, id kernel.ChainID, change func([]line) []line) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	have, ok := f.tables[family][id]
	if !ok {
		return fmt.Errorf("chain %s: %w", id, kernel.ErrNotFound)
	}
	f.setChain(family, id, change(have))
	if err := f.check(family, f.tables[family], id.Table); err != nil {
		f.setChain(family, id, have)
		return err
	}
	return nil
}
