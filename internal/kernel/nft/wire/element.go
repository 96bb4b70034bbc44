package wire

import (
	"cmp"
	"context"
	"encoding/binary"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// MaxElements is the largest number of elements in one request. The attribute that contains the elements is limited
// to 64 KiB.
const MaxElements = 250

// ElementKeyEnd is the attribute with the last key of a range.
const ElementKeyEnd = 10

// Element is an element of a set or map. A range also has a last key. An element of a map leads to a chain or contains a value. Keys and
// values are bytes. Left is the time until the kernel deletes the element; zero if it has no timeout.
type Element struct {
	Key, Last, Value, Chain, Comment string
	Left                             time.Duration
}

// A lookup or deletion needs only the key.
func (e Element) append(b []byte, whole bool) []byte {
	return nlbatch.AppendNest(b, unix.NFTA_LIST_ELEM, func(b []byte) []byte {
		b = appendData(b, unix.NFTA_SET_ELEM_KEY, []byte(e.Key))
		if e.Last != "" {
			b = appendData(b, ElementKeyEnd, []byte(e.Last))
		}
		if !whole {
			return b
		}
		if e.Chain != "" {
			b = nlbatch.AppendNest(b, unix.NFTA_SET_ELEM_DATA, func(b []byte) []byte { return appendVerdict(b, unix.NFT_GOTO, e.Chain) })
		}
		if e.Value != "" {
			b = appendData(b, unix.NFTA_SET_ELEM_DATA, []byte(e.Value))
		}
		if e.Comment != "" {
			b = nlbatch.AppendAttr(b, unix.NFTA_SET_ELEM_USERDATA, comment(e.Comment))
		}
		return b
	})
}

func (e *Element) attribute(typ uint16, v []byte) error {
	switch typ {
	case unix.NFTA_SET_ELEM_KEY:
		return data(v, &e.Key)
	case ElementKeyEnd:
		return data(v, &e.Last)
	case unix.NFTA_SET_ELEM_EXPIRATION:
		if len(v) == 8 {
			e.Left = time.Duration(binary.BigEndian.Uint64(v)) * time.Millisecond
		}
	case unix.NFTA_SET_ELEM_USERDATA:
		e.Comment = commentOf(v)
	case unix.NFTA_SET_ELEM_DATA:
		value, verdict, err := Data(v)
		if value == nil {
			e.Chain = cmp.Or(verdict.Chain, Nowhere)
		}
		e.Value = string(value)
		return err
	}
	return nil
}

func data(v []byte, into *string) error {
	value, _, err := Data(v)
	*into = string(value)
	return err
}

// Data parses a value or a verdict. The value is nil if it is a verdict.
func Data(b []byte) (value []byte, verdict kernel.NFTVerdict, err error) {
	err = nlbatch.EachAttr(b, func(typ uint16, v []byte) error {
		if typ == unix.NFTA_DATA_VALUE {
			value = v
			return nil
		}
		a, err := nested(v)
		verdict = kernel.NFTVerdict{Code: int32(a.number(unix.NFTA_VERDICT_CODE, &err)), Chain: a.Text(unix.NFTA_VERDICT_CHAIN)}
		return err
	})
	return value, verdict, err
}

func (s Set) elements() []byte {
	b := nlbatch.AppendString(nil, unix.NFTA_SET_ELEM_LIST_TABLE, TableName)
	return nlbatch.AppendString(b, unix.NFTA_SET_ELEM_LIST_SET, string(s))
}

// Request adds, deletes or looks up at most MaxElements elements.
func (s Set) Request(msg, flags uint16, elements ...Element) nlbatch.Request {
	return request(msg, flags, nlbatch.AppendNest(s.elements(), unix.NFTA_SET_ELEM_LIST_ELEMENTS, func(b []byte) []byte {
		for _, e := range elements {
			b = e.append(b, msg == unix.NFT_MSG_NEWSETELEM)
		}
		return b
	}))
}

// Flush deletes all elements.
func (s Set) Flush() nlbatch.Request { return request(unix.NFT_MSG_DELSETELEM, 0, s.elements()) }

// Elements lists the elements of a set or map. It can miss existing elements. To continue a list, the kernel skips as
// many elements as it has already listed, but their order changes when elements are added or deleted, or when the
// hash table grows.
func (c *Conn) Elements(ctx context.Context, of Set, visit func(Element) error) error {
	payloads, err := c.dump(ctx, unix.NFT_MSG_GETSETELEM, of.elements())
	for _, p := range payloads {
		if err := EachElement(p, visit); err != nil {
			return err
		}
	}
	return err
}

// EachElement parses one message about elements.
func EachElement(payload []byte, visit func(Element) error) error {
	return EachElementAttr(payload, func(v []byte) error {
		var e Element
		if err := nlbatch.EachAttr(v, e.attribute); err != nil {
			return err
		}
		return visit(e)
	})
}

// EachElementAttr visits the attributes of each element in a message.
func EachElementAttr(payload []byte, visit func(attrs []byte) error) error {
	a, err := parse(payload)
	if err != nil {
		return err
	}
	return nlbatch.EachAttr(a[unix.NFTA_SET_ELEM_LIST_ELEMENTS], func(_ uint16, v []byte) error { return visit(v) })
}
