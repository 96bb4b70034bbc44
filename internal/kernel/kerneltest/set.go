package kerneltest

import (
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"syscall"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// SetPrefix is the compiler's prefix for set names. Other sets are foreign.
const SetPrefix = "KIPVS-"

// maxSetName is the kernel's limit, excluding the final zero byte.
const maxSetName = 31

type set struct {
	kernel.Set
	members map[kernel.Element]struct{}
	shared  bool // a state that was read shares members, so the next write must replace them
}

func (s *set) clear() { s.members, s.shared = map[kernel.Element]struct{}{}, false }

func (s *set) own() {
	if s.shared {
		s.members, s.shared = maps.Clone(s.members), false
	}
}

func (f *Fake) readSets(s *kernel.State) {
	s.Sets, s.Members = make(map[string]kernel.Set, len(f.sets)), make(map[string]map[kernel.Element]struct{}, len(f.sets))
	for name, set := range f.sets {
		if !strings.HasPrefix(name, SetPrefix) {
			continue
		}
		s.Sets[name] = set.Set
		s.Members[name], set.shared = set.members, true
	}
}

func (f *Fake) applySet(verb kernel.Verb, want kernel.Set) error {
	switch verb {
	case kernel.Create:
		return f.createSet(want)
	case kernel.Update:
		return f.replaceSet(want)
	case kernel.Delete:
		return f.destroySet(want.Name)
	}
	return errVerb("a set")
}

func (f *Fake) createSet(want kernel.Set) error {
	if err := checkSet(want); err != nil {
		return err
	}
	return f.makeSet(want)
}

func (f *Fake) makeSet(want kernel.Set) error {
	if have, ok := f.sets[want.Name]; ok {
		return fmt.Errorf("%w as %s", kernel.ErrExists, have.Set)
	}
	f.sets[want.Name] = &set{Set: want, members: map[kernel.Element]struct{}{}}
	return nil
}

// replaceSet changes the parameters of a set. If rules refer to the set, this requires a swap, which the kernel allows only between sets of
// the same type and family. Members stay if the new set has room for all of them.
func (f *Fake) replaceSet(want kernel.Set) error {
	if err := checkSet(want); err != nil {
		return err
	}
	have, ok := f.sets[want.Name]
	if !ok {
		return kernel.ErrNotFound
	}
	swappable := have.baseType() == want.Type && have.Family == want.Family
	if rule, used := f.ruleNaming(want.Name); used && !swappable {
		return fmt.Errorf("set %s is in use by a kernel component (%s): %w", have.Set, rule, syscall.EBUSY)
	}
	// Members of a set with extensions cannot be read, so they are lost.
	if !swappable || have.Type != want.Type || len(have.members) > int(want.MaxElem) {
		have.clear()
	}
	have.Set = want
	return nil
}

func (s *set) baseType() kernel.SetType {
	base, _, _ := strings.Cut(string(s.Type), " ")
	return kernel.SetType(base)
}

func (f *Fake) destroySet(name string) error {
	if rule, ok := f.ruleNaming(name); ok {
		return fmt.Errorf("set is in use by a kernel component (%s): %w", rule, syscall.EBUSY)
	}
	delete(f.sets, name)
	return nil
}

func checkSet(s kernel.Set) error {
	if s.Name == "" || len(s.Name) > maxSetName {
		return fmt.Errorf("set name of %d characters: %w", len(s.Name), syscall.EINVAL)
	}
	if s.Family != inet.IPv4 && s.Family != inet.IPv6 {
		return fmt.Errorf("family %s: %w", s.Family, syscall.EINVAL)
	}
	switch s.Type {
	case kernel.HashIP, kernel.HashIPPort, kernel.HashIPPortIP, kernel.HashIPPortNet:
		return nil
	}
	return fmt.Errorf("set type %q: %w", s.Type, kernel.ErrUnavailable)
}

func (f *Fake) applyMember(verb kernel.Verb, m kernel.Member) error {
	set, ok := f.sets[m.Set]
	switch verb {
	case kernel.Create:
		if !ok {
			return fmt.Errorf("set %s: %w", m.Set, kernel.ErrNotFound)
		}
		return set.add(m.Element)
	case kernel.Delete:
		if !ok {
			return nil
		}
		set.own()
		delete(set.members, m.Element)
		return set.check(m.Element) // an element that cannot be in the set is a mistake, not a missing element
	}
	return errVerb("a member")
}

func (s *set) add(e kernel.Element) error {
	if err := s.check(e); err != nil {
		return err
	}
	if _, ok := s.members[e]; ok {
		return nil
	}
	if len(s.members) >= int(s.MaxElem) {
		return fmt.Errorf("%d members: %w", len(s.members), kernel.ErrFull)
	}
	s.own()
	s.members[e] = struct{}{}
	return nil
}

// check rejects an element that does not match the set's type or family. It also rejects a single address as a range, which the kernel
// accepts but returns as a different element.
func (s *set) check(e kernel.Element) error {
	if isNet := s.Type == kernel.HashIPPortNet; !hasShape(e, s.Type) || !e.Addr.IsValid() || !isNet && e.Bits2 != 0 {
		return fmt.Errorf("%s is not an element of a %s: %w", e, s.Type, syscall.EINVAL)
	}
	if inet.FamilyOf(e.Addr) != s.Family || e.Addr2.IsValid() && inet.FamilyOf(e.Addr2) != s.Family {
		return fmt.Errorf("%s in a set of %s: %w", e, s.Family, syscall.EINVAL)
	}
	if s.Type == kernel.HashIP && e.Addr.IsUnspecified() {
		return fmt.Errorf("%s in a %s: %w", e, s.Type, syscall.EINVAL)
	}
	return nil
}

func hasShape(e kernel.Element, typ kernel.SetType) bool {
	switch typ {
	case kernel.HashIP:
		return e.Protocol == 0 && e.Port == 0 && !e.Addr2.IsValid()
	case kernel.HashIPPort:
		return e.Protocol != 0 && !e.Addr2.IsValid()
	case kernel.HashIPPortIP:
		return e.Protocol != 0 && e.Addr2.IsValid()
	case kernel.HashIPPortNet:
		return e.Protocol != 0 && isRange(e)
	}
	return false
}

// isRange reports whether the second address and its length form a range that a set can store. A set cannot store a range with length 0.
func isRange(e kernel.Element) bool {
	r := netip.PrefixFrom(e.Addr2, int(e.Bits2))
	return r.IsValid() && r.Bits() > 0 && r == r.Masked()
}
