package ipset

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// maxLines is the maximum number of members in a message. A member takes at most 80 bytes, and the length field of the enclosing attribute
// has 16 bits.
const maxLines = 500

// segment returns the end of a run of member operations whose order does not matter, because each set appears with only one verb. Within
// the run, other members may overtake a refused member.
func segment(ops []kernel.Op, from int) int {
	verbOf := map[string]kernel.Verb{}
	for i := from; i < len(ops); i++ {
		m, ok := ops[i].Object.(kernel.Member)
		if !ok {
			return i
		}
		if v, seen := verbOf[m.Set]; seen && v != ops[i].Verb {
			return i
		}
		verbOf[m.Set] = ops[i].Verb
	}
	return len(ops)
}

type lines struct {
	set   string
	verb  kernel.Verb
	index []int
}

// The kernel stops a message at the first member that it rejects. applyMembers resends the remaining members in smaller messages, so that
// even a message full of rejected members needs only a few rounds.
func (b *Backend) applyMembers(ctx context.Context, ops []kernel.Op, errs []error) {
	m := &memberApply{ops: ops, errs: errs}
	for open := m.messages(); len(open) > 0; {
		reqs := make([]nlbatch.Request, len(open))
		for i, l := range open {
			reqs[i] = m.encode(l)
		}
		var rest []lines
		for i, err := range b.conn.Do(ctx, reqs) {
			rest = append(rest, m.settle(open[i], err)...)
		}
		open = rest
	}
	b.explainFull(ctx, m)
}

type memberApply struct {
	ops  []kernel.Op
	errs []error
	full []int // operations refused because the set is full
}

// messages groups the members by set. It omits invalid operations, and records their errors.
func (m *memberApply) messages() []lines {
	var all []lines
	place := map[string]int{}
	for i, op := range m.ops {
		member := op.Object.(kernel.Member)
		if err := checkMember(op.Verb, member); err != nil {
			m.fail(i, err)
			continue
		}
		at, ok := place[member.Set]
		if !ok || len(all[at].index) == maxLines {
			at = len(all)
			place[member.Set] = at
			all = append(all, lines{set: member.Set, verb: op.Verb})
		}
		all[at].index = append(all[at].index, i)
	}
	return all
}

func checkMember(verb kernel.Verb, m kernel.Member) error {
	if verb != kernel.Create && verb != kernel.Delete {
		return errVerb
	}
	if err := checkElement(m.Element); err != nil {
		return kernel.InvalidError{Reason: err}
	}
	return nil
}

func (m *memberApply) fail(i int, err error) {
	op := m.ops[i]
	m.errs[i] = fmt.Errorf("%s member %s: %w", verbs[op.Verb], op.Object, err)
}

func (m *memberApply) encode(l lines) nlbatch.Request {
	attrs := nlbatch.AppendString(nil, nl.IPSET_ATTR_SETNAME, l.set)
	// When the kernel sends the message back, it overwrites 0 with the number of the rejected line.
	attrs = nlbatch.AppendUint32(attrs, nl.IPSET_ATTR_LINENO, 0)
	attrs = nlbatch.AppendNest(attrs, nl.IPSET_ATTR_ADT, func(b []byte) []byte {
		for n, i := range l.index {
			b = appendElement(b, m.ops[i].Object.(kernel.Member).Element, uint32(n+1))
		}
		return b
	})
	cmd := uint16(cmdAdd)
	if l.verb == kernel.Delete {
		cmd = cmdDel
	}
	return request(cmd, attrs)
}

// settle records the result of a message, and returns the members that must be sent again.
func (m *memberApply) settle(l lines, err error) []lines {
	if err == nil {
		return nil
	}
	refused, ok := refusedLine(err, len(l.index))
	if !ok {
		m.failAll(l, err)
		return nil
	}
	m.refuse(l.index[refused], err)
	rest := l.index[refused+1:]
	size := max(1, len(l.index)/4)
	var open []lines
	for len(rest) > 0 {
		n := min(size, len(rest))
		open = append(open, lines{set: l.set, verb: l.verb, index: rest[:n]})
		rest = rest[n:]
	}
	return open
}

func (m *memberApply) failAll(l lines, err error) {
	missing := errors.Is(err, unix.ENOENT)
	if missing && l.verb == kernel.Delete {
		return
	}
	if missing {
		err = fmt.Errorf("set %w", kernel.ErrNotFound)
	}
	for _, i := range l.index {
		m.fail(i, refusal(err))
	}
}

func (m *memberApply) refuse(i int, err error) {
	if isErrno(err, errHashFull) {
		m.full = append(m.full, i)
	}
	m.fail(i, refusal(err))
}

// Lines before the refused line have taken effect.
func refusedLine(err error, count int) (int, bool) {
	var e *nlbatch.Error
	if !errors.As(err, &e) {
		return 0, false
	}
	line := uint32(0)
	malformed := eachAttr(e.Request, func(typ uint16, v []byte) (err error) {
		if typ == nl.IPSET_ATTR_LINENO && len(v) == 4 {
			line = binary.NativeEndian.Uint32(v)
		}
		return nil
	})
	if malformed != nil || line == 0 || line > uint32(count) {
		return 0, false
	}
	return int(line) - 1, true
}

func (b *Backend) explainFull(ctx context.Context, m *memberApply) {
	sizes := map[string]uint32{}
	for _, i := range m.full {
		set := m.ops[i].Object.(kernel.Member).Set
		size, ok := sizes[set]
		if !ok {
			h, _ := b.header(ctx, set) // report the error even if the size is unknown
			size = h.MaxElem
			sizes[set] = size
		}
		m.fail(i, fmt.Errorf("%w: %s holds %d members (maxelem)", kernel.ErrFull, set, size))
	}
}
