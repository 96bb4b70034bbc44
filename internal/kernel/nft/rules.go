package nft

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// hook is the place where a base chain is attached.
type hook struct {
	typ      string
	number   uint32
	priority int32
}

// baseChains take the place of the built-in chains of iptables. A nat chain runs right before the one of iptables (-100 and 100), because
// the first translation of a connection counts. A filter chain runs right before those of firewalls (0), so that it sees all packets.
var baseChains = map[kernel.ChainID]hook{
	{Table: "mangle", Chain: "PREROUTING"}: {"filter", unix.NF_INET_PRE_ROUTING, -150},
	{Table: "mangle", Chain: "INPUT"}:      {"filter", unix.NF_INET_LOCAL_IN, -150},
	{Table: "mangle", Chain: "OUTPUT"}:     {"filter", unix.NF_INET_LOCAL_OUT, -150},
	{Table: "nat", Chain: "PREROUTING"}:    {"nat", unix.NF_INET_PRE_ROUTING, -101},
	{Table: "nat", Chain: "OUTPUT"}:        {"nat", unix.NF_INET_LOCAL_OUT, -101},
	{Table: "nat", Chain: "POSTROUTING"}:   {"nat", unix.NF_INET_POST_ROUTING, 99},
	{Table: "filter", Chain: "INPUT"}:      {"filter", unix.NF_INET_LOCAL_IN, -1},
	{Table: "filter", Chain: "FORWARD"}:    {"filter", unix.NF_INET_FORWARD, -1},
	{Table: "filter", Chain: "OUTPUT"}:     {"filter", unix.NF_INET_LOCAL_OUT, -1},
}

func chainName(f inet.Family, id kernel.ChainID) string {
	return fmt.Sprintf("%s-%s-%d", id.Table, id.Chain, f)
}

// parseChain is the inverse of chainName. ok is false for a chain of another program.
func parseChain(name string) (f inet.Family, id kernel.ChainID, ok bool) {
	rest := name
	for _, family := range inet.Families {
		if before, found := strings.CutSuffix(name, fmt.Sprintf("-%d", family)); found {
			f, rest = family, before
		}
	}
	table, chain, found := strings.Cut(rest, "-")
	return f, kernel.ChainID{Table: table, Chain: chain}, found && f != 0
}

func chainNamed(name string) []byte {
	b := nlbatch.AppendString(nil, unix.NFTA_CHAIN_TABLE, Table)
	return nlbatch.AppendString(b, unix.NFTA_CHAIN_NAME, name)
}

func newTable() nlbatch.Request {
	return request(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, nlbatch.AppendString(nil, unix.NFTA_TABLE_NAME, Table))
}

func newChain(name string) nlbatch.Request {
	return request(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, chainNamed(name))
}

func newBaseChain(name string, h hook) nlbatch.Request {
	b := chainNamed(name)
	b = nlbatch.AppendNest(b, unix.NFTA_CHAIN_HOOK, func(b []byte) []byte {
		b = appendBigUint32(b, unix.NFTA_HOOK_HOOKNUM, h.number)
		return appendBigUint32(b, unix.NFTA_HOOK_PRIORITY, uint32(h.priority))
	})
	b = appendBigUint32(b, unix.NFTA_CHAIN_POLICY, nfAccept)
	return request(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, nlbatch.AppendString(b, unix.NFTA_CHAIN_TYPE, h.typ))
}

func deleteChain(name string) nlbatch.Request {
	return request(unix.NFT_MSG_DELCHAIN, 0, chainNamed(name))
}

func rulesOf(chain string) []byte {
	b := nlbatch.AppendString(nil, unix.NFTA_RULE_TABLE, Table)
	return nlbatch.AppendString(b, unix.NFTA_RULE_CHAIN, chain)
}

func flushChain(name string) nlbatch.Request {
	return request(unix.NFT_MSG_DELRULE, 0, rulesOf(name))
}

func newRule(f inet.Family, at kernel.ChainID, r kernel.Rule, base bool) (nlbatch.Request, error) {
	code, err := program(f, at, r, base)
	if err != nil {
		return nlbatch.Request{}, fmt.Errorf("%s %s %s: %w", f, at, r, err)
	}
	b := rulesOf(chainName(f, at))
	b = nlbatch.AppendAttr(b, unix.NFTA_RULE_EXPRESSIONS|unix.NLA_F_NESTED, code)
	b = nlbatch.AppendAttr(b, unix.NFTA_RULE_USERDATA, comment(r.Comment()))
	return request(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, b), nil
}

// udataComment is NFTNL_UDATA_RULE_COMMENT. nft prints it as the comment of the rule.
const (
	udataComment = 0
	maxComment   = 127
)

func comment(text string) []byte {
	text = text[:min(len(text), maxComment)]
	return append(append([]byte{udataComment, byte(len(text) + 1)}, text...), 0)
}

// commentOf returns the comment in the user data of a rule, which is a list of type, length and value.
func commentOf(udata []byte) string {
	for len(udata) >= 2 {
		typ, length := udata[0], int(udata[1])
		if length > len(udata)-2 {
			return ""
		}
		if typ == udataComment {
			return nlbatch.String(udata[2 : 2+length])
		}
		udata = udata[2+length:]
	}
	return ""
}

// ruleset returns the requests that write the rules. Chains come first, because rules jump to them. The last requests delete those of the
// existing chains that are not wanted.
func ruleset(r kernel.Ruleset, existing []string) ([]nlbatch.Request, error) {
	reqs := []nlbatch.Request{newTable()}
	wanted := map[string]bool{}
	var flushes, rules []nlbatch.Request
	declare := func(id kernel.ChainID, make func(string) nlbatch.Request) {
		name := chainName(r.Family, id)
		if !wanted[name] {
			wanted[name] = true
			reqs, flushes = append(reqs, make(name)), append(flushes, flushChain(name))
		}
	}
	write := func(at kernel.ChainID, rule kernel.Rule, base bool) error {
		req, err := newRule(r.Family, at, rule, base)
		rules = append(rules, req)
		return err
	}
	for _, c := range r.Chains {
		declare(c.ChainID, newChain)
		for _, rule := range c.Rules {
			if err := write(c.ChainID, rule, false); err != nil {
				return nil, err
			}
		}
	}
	for _, j := range r.Jumps {
		h, known := baseChains[j.ChainID]
		if !known {
			return nil, fmt.Errorf("nftables has no base chain for %s", j.ChainID)
		}
		declare(j.ChainID, func(name string) nlbatch.Request { return newBaseChain(name, h) })
		if err := write(j.ChainID, j.Rule, true); err != nil {
			return nil, err
		}
	}
	if balances(r) {
		reqs = append(reqs, newChain(balanceChain(r.Family)))
	}
	stale := slices.DeleteFunc(slices.Clone(existing), func(name string) bool { return wanted[name] })
	return slices.Concat(reqs, flushes, rules, removal(stale)), nil
}

// removal deletes chains. It deletes all their rules first, because the chains jump to each other.
func removal(chains []string) []nlbatch.Request {
	var reqs []nlbatch.Request
	for _, name := range chains {
		reqs = append(reqs, flushChain(name))
	}
	for _, name := range chains {
		reqs = append(reqs, deleteChain(name))
	}
	return reqs
}

// decodeRule returns where a rule is, and its comment.
func decodeRule(payload []byte) (table, chain, text string, err error) {
	err = eachAttr(payload, func(typ uint16, v []byte) error {
		switch typ {
		case unix.NFTA_RULE_TABLE:
			table = nlbatch.String(v)
		case unix.NFTA_RULE_CHAIN:
			chain = nlbatch.String(v)
		case unix.NFTA_RULE_USERDATA:
			text = commentOf(v)
		}
		return nil
	})
	return table, chain, text, err
}
