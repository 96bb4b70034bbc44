package known

import (
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// written records the objects that the agent has written, tried to write or looked up since an audit began. Only the
// next audit's result counts for them, because this audit may have read them before the write.
type written struct {
	servers   keySet
	members   map[kernel.Member]struct{}
	sets      map[string]struct{}
	addresses map[netip.Addr]struct{}
	rules     map[inet.Family]struct{}
	// base covers sysctls, timeouts and the device.
	base, device bool
}

func newWritten() written {
	return written{
		servers: keySet{}, members: map[kernel.Member]struct{}{}, sets: map[string]struct{}{}, addresses: map[netip.Addr]struct{}{},
		rules: map[inet.Family]struct{}{},
	}
}

// Writes counts the changes to each part of the known state.
type Writes struct{ Servers, Sets, Rules, Sysctls uint64 }

func (w *Writes) note(object kernel.Object) {
	switch object.(type) {
	case kernel.Server, kernel.ServerDestination:
		w.Servers++
	case kernel.Set, kernel.Member:
		w.Sets++
	case kernel.Ruleset:
		w.Rules++
	case kernel.SysctlSetting, kernel.DummyDevice: // kube-ipvs0 has its own sysctls
		w.Sysctls++
	}
}

func (w *Writes) all() {
	w.Servers++
	w.Sets++
	w.Rules++
	w.Sysctls++
}

func (w *written) note(object kernel.Object) {
	switch o := object.(type) {
	case kernel.Server:
		w.servers[o.Key] = struct{}{}
	case kernel.ServerDestination:
		w.servers[o.Server] = struct{}{}
	case kernel.Member:
		w.members[o] = struct{}{}
	case kernel.Set:
		w.sets[o.Name] = struct{}{}
	case kernel.BoundAddress:
		w.addresses[o.Addr] = struct{}{}
	case kernel.Ruleset:
		w.rules[o.Family] = struct{}{}
	case kernel.DummyDevice:
		w.base, w.device = true, true
	case kernel.SysctlSetting, kernel.Timeouts:
		w.base = true
	}
}

// BeginAudit returns the parts of the kernel's state that an audit must return even if they have not changed.
func (k *Kernel) BeginAudit(limited []kernel.ServerKey) kernel.Audit {
	w := k.written
	k.written, k.failed, k.skippedLater = newWritten(), Unverified{}, false
	audit := kernel.Audit{
		All: k.lost, Servers: w.servers, Members: w.members, Sets: w.sets, Addresses: w.addresses, AllAddresses: w.device, Limited: limited,
	}
	k.lost, k.auditing = true, true // until the audit's result is merged
	return audit
}

// Unseen returns the known virtual servers that an audit did not see. A dump can miss some of them, so only a lookup
// shows whether they exist.
func (k *Kernel) Unseen(d *kernel.Differences) []kernel.ServerKey {
	var unseen []kernel.ServerKey
	for key, server := range d.Servers {
		if _, known := k.have.Servers[key]; server == nil && known && !has(k.written.servers, key) {
			unseen = append(unseen, key)
		}
	}
	if !d.All {
		return unseen
	}
	for key := range k.have.Servers {
		if _, reported := d.Servers[key]; !reported && !has(k.written.servers, key) {
			unseen = append(unseen, key)
		}
	}
	return unseen
}

// UnseenMembers returns the known set members that the audit may have missed.
func (k *Kernel) UnseenMembers(d *kernel.Differences) (unseen []kernel.Member) {
	if !d.Base.MayMiss {
		return nil
	}
	for name, read := range d.Members {
		unseen = slices.AppendSeq(unseen, k.goneMembers(name, read))
	}
	return unseen
}

// goneMembers yields the known members of a set that the audit did not see, except those that the agent has written meanwhile.
func (k *Kernel) goneMembers(set string, read kernel.Changes[kernel.Element, struct{}]) iter.Seq[kernel.Member] {
	return func(yield func(kernel.Member) bool) {
		for e := range gone(k.have.Members[set], read) {
			m := kernel.Member{Set: set, Element: e}
			if _, written := k.written.members[m]; !written && !yield(m) {
				return
			}
		}
	}
}

// noteVanished records which members of a set another program has removed, and which of those recorded earlier exist again.
func (k *Kernel) noteVanished(set string, read kernel.Changes[kernel.Element, struct{}]) {
	if _, written := k.written.sets[set]; written {
		return
	}
	for m := range k.goneMembers(set, read) {
		k.vanished[m] = struct{}{}
	}
	if len(k.vanished) == 0 {
		return
	}
	for e := range read.Now {
		k.restore(kernel.Member{Set: set, Element: e}, true) // a write may report a failure although it took effect
	}
}

// restore forgets that a member has vanished, because it exists again or the agent does not want it.
func (k *Kernel) restore(m kernel.Member, exists bool) {
	if _, vanished := k.vanished[m]; !vanished {
		return
	}
	k.restored = k.restored || exists
	if delete(k.vanished, m); len(k.vanished) == 0 {
		k.vanished = map[kernel.Member]struct{}{} // an emptied map keeps its memory
	}
}

// TakeRestored reports whether set members that another program had removed have been restored since the previous call.
func (k *Kernel) TakeRestored() (restored bool) {
	restored, k.restored = k.restored, false
	return restored
}

// Exist records that a lookup found members that the audit missed. The next audit must return them. Otherwise
// it would report only differences from this audit, and miss the deletion of these members.
func (k *Kernel) Exist(found map[kernel.Member]struct{}) { maps.Copy(k.written.members, found) }

// AskAgain makes the next audit return these virtual servers. Call it after Merge.
func (k *Kernel) AskAgain(lookedUp []kernel.ServerKey) {
	for _, key := range lookedUp {
		k.written.servers[key] = struct{}{}
	}
}

// Written reports whether the agent has written a virtual server since the audit began.
func (k *Kernel) Written(key kernel.ServerKey) bool { return has(k.written.servers, key) }

// Merge updates the known state with the result of an audit, except for objects written since the audit began. It
// reports whether a full comparison is necessary. Places with failed operations stay unverified until that comparison,
// because an incremental sync compares only some of the objects there.
func (k *Kernel) Merge(d *kernel.Differences) bool {
	m := merge{have: k.have, written: &k.written, differs: k.skipped || len(k.unverified) > 0}
	m.base(&d.Base)
	for name, members := range d.Members {
		k.noteVanished(name, members)
		m.members(name, members)
	}
	if !k.written.device {
		m.addresses(d.Addresses)
	}
	for key, server := range d.Servers {
		m.server(key, server)
	}
	k.writes.all()
	k.skipped, k.lost, k.auditing = m.differs, false, false
	return m.differs
}

// TouchSkipped touches the objects whose writes were refused or skipped since the last full comparison, and all other
// objects at their addresses.
func (k *Kernel) TouchSkipped(w *diff.Target, touched *want.Touched) {
	if waiting := k.waiting; len(waiting.Servers)+len(waiting.Members)+len(waiting.Addresses) == 0 {
		return
	}
	addrs := map[netip.Addr]struct{}{}
	for p := range places(k.waiting) {
		addrs[p.addr] = struct{}{}
	}
	maps.Copy(touched.Servers, k.waiting.Servers)
	maps.Copy(touched.Members, k.waiting.Members)
	maps.Copy(touched.Addresses, k.waiting.Addresses)
	for key := range w.Servers {
		if _, waits := addrs[key.Addr.Addr()]; waits {
			w.Touch(key, touched)
		}
	}
	for key := range k.have.Servers {
		if _, waits := addrs[key.Addr.Addr()]; waits {
			touched.Servers[key] = struct{}{}
			touched.Members[want.LedgerEntry(w.Base().Ledger, key)] = struct{}{}
		}
	}
	k.waiting = want.NewTouched()
}

type merge struct {
	have    *kernel.State
	written *written
	differs bool
}

func (m *merge) base(read *kernel.State) {
	if !m.written.base {
		m.differs = m.differs || !maps.Equal(m.have.Sysctls, read.Sysctls) // a sysctl can prevent the agent from binding addresses
		m.have.Device, m.have.Timeouts, m.have.Sysctls = read.Device, read.Timeouts, maps.Clone(read.Sysctls)
	}
	for f, view := range read.Rules {
		if _, written := m.written.rules[f]; !written {
			m.have.Rules[f] = view
		}
	}
	for name := range m.have.Sets {
		if _, exists := read.Sets[name]; !exists && !m.writtenSet(name) {
			delete(m.have.Sets, name)
			delete(m.have.Members, name)
			m.differs = true
		}
	}
	for name, set := range read.Sets {
		if m.have.Sets[name] != set && !m.writtenSet(name) {
			m.have.Sets[name] = set
			m.differs = true
		}
	}
}

func (m *merge) writtenSet(name string) bool {
	_, written := m.written.sets[name]
	return written
}

func (m *merge) members(name string, read kernel.Changes[kernel.Element, struct{}]) {
	if m.writtenSet(name) {
		return
	}
	have := m.have.Members[name]
	if have == nil {
		have = map[kernel.Element]struct{}{}
		m.have.Members[name] = have
	}
	written := func(e kernel.Element) bool {
		_, written := m.written.members[kernel.Member{Set: name, Element: e}]
		return written
	}
	m.differs = follow(have, read, written) || m.differs
}

func (m *merge) addresses(read kernel.Changes[netip.Addr, kernel.Binding]) {
	written := func(a netip.Addr) bool {
		_, written := m.written.addresses[a]
		return written
	}
	m.differs = follow(m.have.Addresses, read, written) || m.differs
}

// gone yields the known entries that an audit did not see.
func gone[K, V comparable](have map[K]V, read kernel.Changes[K, V]) iter.Seq[K] {
	return func(yield func(K) bool) {
		if read.All {
			for key := range have {
				if _, exists := read.Now[key]; !exists && !yield(key) {
					return
				}
			}
			return
		}
		for key := range read.Gone {
			if _, known := have[key]; known && !yield(key) {
				return
			}
		}
	}
}

func follow[K, V comparable](have map[K]V, read kernel.Changes[K, V], written func(K) bool) (changed bool) {
	for key := range gone(have, read) {
		if !written(key) {
			delete(have, key)
			changed = true
		}
	}
	for key, value := range read.Now {
		if now, known := have[key]; (!known || now != value) && !written(key) {
			have[key] = value
			changed = true
		}
	}
	return changed
}

func (m *merge) server(key kernel.ServerKey, read *kernel.ObservedServer) {
	if has(m.written.servers, key) {
		return
	}
	before, known := m.have.Servers[key]
	if read == nil {
		delete(m.have.Servers, key)
		m.differs = m.differs || known
		return
	}
	m.differs = m.differs || !known || !read.SameConfig(before)
	m.have.Servers[key] = *read
}
