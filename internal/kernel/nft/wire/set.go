package wire

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// Field is a field of a key: its nft data type, which determines how nft prints elements, and its length in bytes,
// padded to a multiple of 4.
type Field struct{ Type, Length uint32 }

// Protocol and Port are fields of keys.
var (
	Protocol = Field{12, 4}
	Port     = Field{13, 4}
)

// Address returns the field of an IP address.
func Address(f inet.Family) Field {
	if f == inet.IPv6 {
		return Field{8, 16}
	}
	return Field{7, 4}
}

// Key contains the fields of a set's key, or of a map's value.
type Key []Field

// Type returns the data type of the key. A concatenation uses 6 bits for each field.
func (k Key) Type() (all uint32) {
	for _, f := range k {
		all = all<<6 | f.Type
	}
	return all
}

// Length returns the length of the key in bytes.
func (k Key) Length() (all uint32) {
	for _, f := range k {
		all += f.Length
	}
	return all
}

// Set is the name of a set or map. Its methods return requests.
type Set string

// Layout describes a set, or a map if it has values. Without a size, the set grows as needed.
type Layout struct {
	Flags      uint32
	Key, Value Key
	Size       uint32
}

func (s Set) name() []byte {
	b := nlbatch.AppendString(nil, unix.NFTA_SET_TABLE, TableName)
	return nlbatch.AppendString(b, unix.NFTA_SET_NAME, string(s))
}

// Create creates the set or map, which must not exist if flags has NLM_F_EXCL.
func (s Set) Create(flags uint16, l Layout) nlbatch.Request {
	if len(l.Key) > 1 {
		l.Flags |= flagConcat
	}
	if len(l.Value) > 0 {
		l.Flags |= unix.NFT_SET_MAP
	}
	b := nlbatch.AppendBigUint32(s.name(), unix.NFTA_SET_FLAGS, l.Flags)
	b = nlbatch.AppendBigUint32(b, unix.NFTA_SET_KEY_TYPE, l.Key.Type())
	b = nlbatch.AppendBigUint32(b, unix.NFTA_SET_KEY_LEN, l.Key.Length())
	b = nlbatch.AppendBigUint32(b, unix.NFTA_SET_ID, 1)
	if len(l.Value) > 0 {
		b = nlbatch.AppendBigUint32(b, unix.NFTA_SET_DATA_TYPE, l.Value.Type())
		b = nlbatch.AppendBigUint32(b, unix.NFTA_SET_DATA_LEN, l.Value.Length())
	}
	b = nlbatch.AppendNest(b, unix.NFTA_SET_DESC, l.describe)
	return request(unix.NFT_MSG_NEWSET, unix.NLM_F_CREATE|flags, b)
}

func (l Layout) describe(b []byte) []byte {
	if l.Size > 0 {
		b = nlbatch.AppendBigUint32(b, unix.NFTA_SET_DESC_SIZE, l.Size)
	}
	if len(l.Key) == 1 {
		return b
	}
	return nlbatch.AppendNest(b, setDescConcat, func(b []byte) []byte {
		for _, f := range l.Key {
			b = nlbatch.AppendNest(b, unix.NFTA_LIST_ELEM, func(b []byte) []byte { return nlbatch.AppendBigUint32(b, setFieldLength, f.Length) })
		}
		return b
	})
}

// Delete deletes the set or map.
func (s Set) Delete() nlbatch.Request { return request(unix.NFT_MSG_DELSET, 0, s.name()) }

// ListedSet is a set or map in the kernel.
type ListedSet struct {
	Family byte
	Name   string
	Key    uint32 // the data type of the key
	// KeyLength is the length of the key. Fields are the lengths of a concatenation's fields.
	KeyLength uint32
	Fields    []uint32
	// Flags are the set's flags, without the flag for concatenations.
	Flags, Size uint32
	// Elements is the number of elements, or kernel.Uncounted. Older kernels do not report the number.
	Elements int
}

var sets = kind[ListedSet]{unix.NFT_MSG_GETSET, func(name string) []byte { return Set(name).name() }, DecodeSet}

// Sets returns the table's sets and maps by name.
func (c *Conn) Sets(ctx context.Context) (map[string]ListedSet, error) {
	all, err := sets.all(ctx, c, nlbatch.AppendString(nil, unix.NFTA_SET_TABLE, TableName))
	if errors.Is(err, unix.ENOENT) {
		return map[string]ListedSet{}, nil // the table does not exist
	}
	return all, err
}

// LookupSets returns the sets and maps with these names that exist.
func (c *Conn) LookupSets(ctx context.Context, names []string) (map[string]ListedSet, error) {
	return sets.lookup(ctx, c, names)
}

// DecodeSet parses a message about a set or map.
func DecodeSet(payload []byte) (table, name string, s ListedSet, err error) {
	a, err := parse(payload)
	desc, wrong := nested(a[unix.NFTA_SET_DESC])
	err = errors.Join(err, wrong)
	s = ListedSet{
		Name: a.Text(unix.NFTA_SET_NAME), Key: a.number(unix.NFTA_SET_KEY_TYPE, &err), Flags: a.number(unix.NFTA_SET_FLAGS, &err) &^ flagConcat,
		Size: desc.number(unix.NFTA_SET_DESC_SIZE, &err), Elements: kernel.Uncounted,
		Family: familyOf(payload), KeyLength: a.number(unix.NFTA_SET_KEY_LEN, &err),
	}
	err = errors.Join(err, nlbatch.EachAttr(desc[setDescConcat], func(_ uint16, v []byte) error {
		field, err := nested(v)
		s.Fields = append(s.Fields, field.number(setFieldLength, &err))
		return err
	}))
	if _, counted := a[setCount]; counted {
		s.Elements = int(a.number(setCount, &err))
	}
	return a.Text(unix.NFTA_SET_TABLE), s.Name, s, err
}

const (
	// countShare limits the cost of counting. After each count, the agent waits this many times as long as the count took.
	countShare = 100
	// countFree is how long a count may take without requiring a pause.
	countFree = 5 * time.Millisecond
)

// Count looks up sets and maps. If the kernel does not report the number of elements, Count lists them, unless the
// last slow count was recent.
func (c *Conn) Count(ctx context.Context, names []string) (map[string]ListedSet, error) {
	sets, err := c.LookupSets(ctx, names)
	if err != nil {
		return nil, fmt.Errorf("read sets: %w", err)
	}
	began := time.Now()
	wanted := !began.Before(c.countAfter)
	for name, s := range sets {
		if s.Elements, err = c.count(ctx, s, wanted); err != nil {
			return nil, fmt.Errorf("count set %s: %w", name, err)
		}
		sets[name] = s
	}
	c.countAfter = countAgain(began, time.Since(began), c.countAfter)
	return sets, nil
}

func (c *Conn) count(ctx context.Context, s ListedSet, wanted bool) (n int, err error) {
	if s.Elements != kernel.Uncounted || !wanted {
		return s.Elements, nil
	}
	err = c.Elements(ctx, Set(s.Name), func(Element) error { n++; return nil })
	return n, err
}

func countAgain(began time.Time, took time.Duration, before time.Time) time.Time {
	if took < countFree || began.Before(before) {
		return before
	}
	return began.Add(countShare * took)
}
