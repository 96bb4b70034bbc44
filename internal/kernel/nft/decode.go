package nft

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// List reads the rules of every family in the format of iptables. Rules of other programs get a match of an unknown kind.
func (b *Backend) List(ctx context.Context) (map[inet.Family]kernel.RuleListing, error) {
	listings := map[inet.Family]kernel.RuleListing{}
	for _, f := range b.families {
		listings[f] = kernel.RuleListing{Policies: map[kernel.ChainID]string{}, Rules: map[kernel.ChainID][]kernel.SavedRule{}}
	}
	chains, err := b.allChains(ctx)
	if err != nil {
		return nil, fmt.Errorf("read chains: %w", err)
	}
	for _, name := range chains {
		f, id, ok := parseChain(name)
		if !ok || listings[f].Rules == nil {
			continue
		}
		listings[f].Rules[id] = nil
		payloads, err := b.rules(ctx, name)
		for _, p := range payloads {
			_, _, text, wrong := decodeRule(p)
			err = errors.Join(err, wrong)
			listings[f].Rules[id] = append(listings[f].Rules[id], listed(f, id, p, text))
		}
		if err != nil {
			return nil, fmt.Errorf("read rules of %s: %w", name, err)
		}
	}
	return listings, nil
}

// listed returns a rule, with its text in the format of iptables-save. The tag shows whether it was read as it was written.
func listed(f inet.Family, id kernel.ChainID, payload []byte, comment string) kernel.SavedRule {
	r := kernel.SavedRule{ChainID: id, Tag: kernel.TagOf(comment)}
	d := decoder{family: f, table: id.Table}
	err := eachAttr(payload, func(typ uint16, v []byte) error {
		if typ != unix.NFTA_RULE_EXPRESSIONS {
			return nil
		}
		return nlbatch.EachAttr(v, func(_ uint16, v []byte) error { return d.expression(v) })
	})
	d.rule.Why = strings.TrimPrefix(strings.TrimPrefix(comment, r.Tag), " ")
	if err != nil || d.rule.Verdict == nil || d.rule.Tag() != r.Tag {
		const unknown = "--nftables unknown"
		r.Spec, r.Rule.Conditions = fmt.Sprintf(unknown+" -m comment --comment %q", comment), []kernel.Condition{kernel.Unknown(unknown)}
		return r
	}
	args := d.rule.Args()
	verdict := slices.Index(args, "-j")
	r.Rule = d.rule
	r.Spec = strings.Join(slices.Concat(args[:verdict], []string{"-m", "comment", "--comment", fmt.Sprintf("%q", comment)}, args[verdict:]), " ")
	return r
}

var errExpression = errors.New("not an expression of the agent's rules")

// decoder is the inverse of expressions.
type decoder struct {
	family inet.Family
	table  string
	rule   kernel.Rule
	// loads are the expressions whose results the registers hold. mask and xor are the changes made to them.
	loads     []expr
	mask, xor []byte
}

type expr struct {
	name  string
	attrs map[uint16][]byte
}

func (e expr) number(attr uint16) uint32 {
	n, _ := nlbatch.BigUint32(e.attrs[attr])
	return n
}

func (e expr) value(attr uint16) (v []byte) {
	_ = data(e.attrs[attr], &v)
	return v
}

func parseExpr(payload []byte) (e expr, err error) {
	e.attrs = map[uint16][]byte{}
	err = nlbatch.EachAttr(payload, func(typ uint16, v []byte) error {
		switch typ {
		case unix.NFTA_EXPR_NAME:
			e.name = nlbatch.String(v)
		case unix.NFTA_EXPR_DATA:
			return nlbatch.EachAttr(v, func(typ uint16, v []byte) error { e.attrs[typ] = v; return nil })
		}
		return nil
	})
	return e, err
}

func (d *decoder) expression(payload []byte) error {
	e, err := parseExpr(payload)
	if err != nil {
		return err
	}
	_, sets := e.attrs[unix.NFTA_META_SREG]
	switch {
	case e.name == "meta" && sets:
		return d.setsMark()
	case e.name == "meta" || e.name == "payload" || e.name == "ct" || e.name == "fib":
		d.loads = append(d.loads, e)
		return nil
	case e.name == "bitwise":
		d.mask, d.xor = e.value(unix.NFTA_BITWISE_MASK), e.value(unix.NFTA_BITWISE_XOR)
		return nil
	case e.name == "cmp":
		err = d.compared(e.value(unix.NFTA_CMP_DATA), e.number(unix.NFTA_CMP_OP) == unix.NFT_CMP_NEQ)
	case e.name == "lookup":
		err = d.lookedUp(nlbatch.String(e.attrs[unix.NFTA_LOOKUP_SET]), e.number(unix.NFTA_LOOKUP_FLAGS)&unix.NFT_LOOKUP_F_INV != 0)
	default:
		err = d.verdict(e)
	}
	d.loads, d.mask, d.xor = nil, nil, nil
	return err
}

func (d *decoder) setsMark() error {
	if len(d.mask) != 4 || len(d.xor) != 4 {
		return errExpression
	}
	mask, xor := binary.NativeEndian.Uint32(d.mask), binary.NativeEndian.Uint32(d.xor)
	switch mask {
	case ^xor:
		d.rule.Verdict = kernel.SetMark(xor)
	case ^uint32(0):
		d.rule.Verdict = kernel.FlipMark(xor)
	default:
		return errExpression
	}
	return nil
}

func (d *decoder) add(c kernel.Condition) { d.rule.Conditions = append(d.rule.Conditions, c) }

func (d *decoder) compared(value []byte, not bool) error {
	if len(d.loads) != 1 {
		return errExpression
	}
	load := d.loads[0]
	switch load.name {
	case "ct":
		if slices.Equal(d.mask, native(invalid)) {
			d.add(kernel.Invalid{})
		} else {
			d.add(kernel.Established{Not: !not})
		}
	case "fib":
		d.add(kernel.ToThisNode{})
	case "payload":
		ones := 0
		for _, b := range d.mask {
			ones += bits.OnesCount8(b)
		}
		addr, ok := netip.AddrFromSlice(value)
		if !ok {
			return errExpression
		}
		if r := netip.PrefixFrom(addr, ones); d.isSource(load) {
			d.add(kernel.From{Prefix: r})
		} else {
			d.add(kernel.To{Prefix: r})
		}
	case "meta":
		return d.metaCompared(load.number(unix.NFTA_META_KEY), value, not)
	}
	return nil
}

func (d *decoder) metaCompared(key uint32, value []byte, not bool) error {
	if len(value) == 0 || key == unix.NFT_META_MARK && len(value) != 4 {
		return errExpression
	}
	switch key {
	case unix.NFT_META_NFPROTO: // implied by the chain
	case unix.NFT_META_L4PROTO:
		if p := value[0]; p == unix.IPPROTO_ICMP || p == unix.IPPROTO_ICMPV6 {
			d.add(kernel.Ping{Family: d.family})
		} else {
			d.add(kernel.OfProtocol{Protocol: inet.Protocol(p)})
		}
	case unix.NFT_META_MARK:
		d.add(kernel.Marked{Bits: binary.NativeEndian.Uint32(value), Not: not})
	case unix.NFT_META_IIFNAME:
		name := bytes.TrimRight(value, "\x00")
		d.add(kernel.Arrives{Interface: string(name), Prefix: len(name) == len(value)})
	default:
		return errExpression
	}
	return nil
}

func (d *decoder) isSource(load expr) bool {
	return load.number(unix.NFTA_PAYLOAD_OFFSET) == map[inet.Family]uint32{inet.IPv4: sourceOffset4, inet.IPv6: sourceOffset6}[d.family]
}

func (d *decoder) lookedUp(set string, not bool) error {
	key := map[int]kernel.SetKey{1: kernel.KeyDestination, 3: kernel.KeyDestinationPort, 4: kernel.KeyDestinationClient}[len(d.loads)]
	if len(d.loads) == 1 && d.isSource(d.loads[0]) {
		key = kernel.KeySource
	}
	if key == "" {
		return errExpression
	}
	d.add(kernel.InSet{Set: set, Key: key, Not: not})
	return nil
}

func (d *decoder) verdict(e expr) error {
	switch e.name {
	case "nat":
		d.rule.Verdict = kernel.Accept
	case "masq":
		d.rule.Verdict = kernel.Masquerade{RandomPort: e.number(unix.NFTA_MASQ_FLAGS)&randomFully != 0}
	case "reject":
		code := e.attrs[unix.NFTA_REJECT_ICMP_CODE]
		for _, v := range []kernel.Reject{kernel.PortUnreachable, kernel.ProtocolUnreachable, kernel.PortUnreachable6} {
			if len(code) == 1 && code[0] == icmpCodes[v] {
				d.rule.Verdict = v
			}
		}
	case "immediate":
		return d.immediate(e)
	default:
		return errExpression
	}
	return nil
}

func (d *decoder) immediate(e expr) error {
	var code uint32
	chain := ""
	err := nlbatch.EachAttr(e.attrs[unix.NFTA_IMMEDIATE_DATA], func(_ uint16, v []byte) error {
		return nlbatch.EachAttr(v, func(typ uint16, v []byte) (err error) {
			switch typ {
			case unix.NFTA_VERDICT_CODE:
				code, err = nlbatch.BigUint32(v)
			case unix.NFTA_VERDICT_CHAIN:
				chain = nlbatch.String(v)
			}
			return err
		})
	})
	switch int32(code) {
	case nfDrop:
		d.rule.Verdict = kernel.Drop
	case nfAccept:
		d.rule.Verdict = kernel.Accept
	case unix.NFT_RETURN:
		d.rule.Verdict = kernel.Return
	case unix.NFT_JUMP:
		if chain == balanceChain(d.family) {
			d.rule.Verdict = kernel.Balance{}
			break
		}
		_, id, _ := parseChain(chain)
		d.rule.Verdict = kernel.JumpTo(id.Chain)
	default:
		return errors.Join(err, errExpression)
	}
	return err
}
