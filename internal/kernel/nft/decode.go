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
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft/balance"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft/wire"
)

// List reads the rules of every family in the format of iptables. A rule of another program has an unknown condition in the list.
func (b *Backend) List(ctx context.Context) (map[inet.Family]kernel.RuleListing, error) {
	listings := map[inet.Family]kernel.RuleListing{}
	for _, f := range b.families {
		listings[f] = kernel.RuleListing{Policies: map[kernel.ChainID]string{}, Rules: map[kernel.ChainID][]kernel.SavedRule{}}
	}
	chains, err := b.conn.Chains(ctx)
	if err != nil {
		return nil, fmt.Errorf("read chains: %w", err)
	}
	for _, name := range chains {
		f, id, ok := parseChain(name)
		if !ok || listings[f].Rules == nil {
			continue
		}
		listings[f].Rules[id] = nil
		rules, err := b.conn.Rules(ctx, wire.Chain(name))
		if err != nil {
			return nil, fmt.Errorf("read rules of %s: %w", name, err)
		}
		for _, r := range rules {
			listings[f].Rules[id] = append(listings[f].Rules[id], listed(f, id, r))
		}
	}
	return listings, nil
}

// listed returns a rule in the format of iptables-save. If the tag of the decoded rule differs from the tag in the
// comment, the rule's condition is unknown.
func listed(f inet.Family, id kernel.ChainID, rule wire.ListedRule) kernel.SavedRule {
	comment := rule.Comment
	r := kernel.SavedRule{ChainID: id, Tag: kernel.TagOf(comment)}
	d := decoder{family: f, table: id.Table}
	all, err := rule.Expressions()
	for _, e := range all {
		err = errors.Join(err, d.expression(e))
	}
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
	// loads lists the expressions whose results are in the registers. mask and xor are the changes made to those results.
	loads     []wire.Expression
	mask, xor []byte
}

func (d *decoder) expression(e wire.Expression) (err error) {
	_, sets := e.Attrs[unix.NFTA_META_SREG]
	switch {
	case e.Name == "meta" && sets:
		return d.setsMark()
	case e.Name == "meta" || e.Name == "payload" || e.Name == "ct" || e.Name == "fib":
		d.loads = append(d.loads, e)
		return nil
	case e.Name == "bitwise":
		d.mask, d.xor = e.Value(unix.NFTA_BITWISE_MASK), e.Value(unix.NFTA_BITWISE_XOR)
		return nil
	case e.Name == "cmp":
		err = d.compared(e.Value(unix.NFTA_CMP_DATA), e.Number(unix.NFTA_CMP_OP) == unix.NFT_CMP_NEQ)
	case e.Name == "lookup":
		err = d.lookedUp(e.Text(unix.NFTA_LOOKUP_SET), e.Number(unix.NFTA_LOOKUP_FLAGS)&unix.NFT_LOOKUP_F_INV != 0)
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
	switch load.Name {
	case "ct":
		if slices.Equal(d.mask, wire.Native(invalid)) {
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
		return d.metaCompared(load.Number(unix.NFTA_META_KEY), value, not)
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

func (d *decoder) isSource(load wire.Expression) bool {
	return load.Number(unix.NFTA_PAYLOAD_OFFSET) == wire.SourceOffset(d.family)
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

func (d *decoder) verdict(e wire.Expression) error {
	switch e.Name {
	case "nat":
		d.rule.Verdict = kernel.Accept
	case "masq":
		d.rule.Verdict = kernel.Masquerade{RandomPort: e.Number(unix.NFTA_MASQ_FLAGS)&randomFully != 0}
	case "reject":
		code := e.Attrs[unix.NFTA_REJECT_ICMP_CODE]
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

func (d *decoder) immediate(e wire.Expression) error {
	verdict := e.Nest(unix.NFTA_IMMEDIATE_DATA).Nest(unix.NFTA_DATA_VERDICT)
	switch chain := verdict.Text(unix.NFTA_VERDICT_CHAIN); int32(verdict.Number(unix.NFTA_VERDICT_CODE)) {
	case wire.Drop:
		d.rule.Verdict = kernel.Drop
	case wire.Accept:
		d.rule.Verdict = kernel.Accept
	case unix.NFT_RETURN:
		d.rule.Verdict = kernel.Return
	case unix.NFT_JUMP:
		if chain == balance.Entrance(d.family) {
			d.rule.Verdict = kernel.Balance{}
			break
		}
		_, id, _ := parseChain(chain)
		d.rule.Verdict = kernel.JumpTo(id.Chain)
	default:
		return errExpression
	}
	return nil
}
