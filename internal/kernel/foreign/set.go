package foreign

import (
	"bytes"
	"errors"
	"math"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft/wire"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// Constants of nf_tables.h that golang.org/x/sys/unix lacks.
const (
	setElemExprs      = 11
	setElemCatchall   = 2
	lengthOfRegister  = 4
	lengthOfRegisters = 64
)

type set struct {
	kernel.NFTSet
	intervals, concatenates bool
	raw                     []rawElement
}

type rawElement struct {
	kernel.NFTElement
	ends, catchAll bool
}

func decodeSet(payload []byte) (name kernel.NFTName, s set, err error) {
	table, text, listed, err := wire.DecodeSet(payload)
	s.intervals, s.concatenates = listed.Flags&unix.NFT_SET_INTERVAL != 0, len(listed.Fields) > 1
	if !s.concatenates {
		listed.Fields = []uint32{listed.KeyLength}
	}
	for _, n := range listed.Fields {
		s.Fields = append(s.Fields, int(min(n, lengthOfRegisters)))
	}
	return kernel.NFTName{Family: familyOf(listed.Family), Table: table, Name: text}, s, err
}

func (s *set) decodeElements(payload []byte) error {
	return wire.EachElementAttr(payload, func(v []byte) error {
		e, err := decodeElement(v)
		s.raw = append(s.raw, e)
		return err
	})
}

func decodeElement(b []byte) (e rawElement, err error) {
	err = nlbatch.EachAttr(b, func(typ uint16, v []byte) (err error) {
		switch typ {
		case unix.NFTA_SET_ELEM_KEY:
			e.Key, _, err = data(v)
		case wire.ElementKeyEnd:
			e.End, _, err = data(v)
		case unix.NFTA_SET_ELEM_DATA:
			e.Data, e.Verdict, err = data(v)
		case unix.NFTA_SET_ELEM_FLAGS:
			var flags uint32
			flags, err = nlbatch.BigUint32(v)
			e.ends, e.catchAll = flags&unix.NFT_SET_ELEM_INTERVAL_END != 0, flags&setElemCatchall != 0
		case unix.NFTA_SET_ELEM_EXPR:
			e.Opaque, err = condition(v)
		case setElemExprs:
			return nlbatch.EachAttr(v, func(_ uint16, v []byte) error {
				text, err := condition(v)
				e.Opaque += text
				return err
			})
		}
		return err
	})
	return e, err
}

// condition returns the condition in an element's expression. It is empty for a counter.
func condition(expr []byte) (string, error) {
	x, err := wire.DecodeExpression(expr)
	s, wrong := statement(x)
	err = errors.Join(err, wrong)
	if opaque, is := s.(kernel.NFTOpaque); is {
		return opaque.Text, err
	}
	return "", err
}

// close completes the set after its last element. The kernel lists an interval as its first key and the first key after it.
func (s *set) close() {
	if s.intervals && !s.concatenates {
		slices.SortStableFunc(s.raw, func(a, b rawElement) int { return bytes.Compare(a.Key, b.Key) })
	}
	for i, e := range s.raw {
		switch {
		case e.catchAll:
			e.Key, e.End = nil, nil
		case e.ends:
			continue
		case s.intervals && !s.concatenates:
			e.End = s.before(i)
		case e.End == nil:
			e.End = e.Key
		}
		s.Elements = append(s.Elements, e.NFTElement)
	}
	s.raw = nil
}

// before returns the last key of the interval that begins at an element.
func (s *set) before(i int) []byte {
	for _, next := range s.raw[i+1:] {
		if next.catchAll || bytes.Equal(next.Key, s.raw[i].Key) && !next.ends {
			continue
		}
		return minusOne(next.Key)
	}
	return bytes.Repeat([]byte{math.MaxUint8}, len(s.raw[i].Key))
}

func minusOne(key []byte) []byte {
	key = slices.Clone(key)
	for i := len(key) - 1; i >= 0; i-- {
		key[i]--
		if key[i] != math.MaxUint8 {
			break
		}
	}
	return key
}
