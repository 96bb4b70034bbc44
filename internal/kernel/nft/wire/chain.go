package wire

import (
	"context"
	"errors"
	"maps"
	"math/big"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// Chain is the name of a chain. Its methods return requests.
type Chain string

// Hook is the place where a base chain is attached.
type Hook struct {
	Type     string
	Number   uint32
	Priority int32
}

func (c Chain) name() []byte {
	b := nlbatch.AppendString(nil, unix.NFTA_CHAIN_TABLE, TableName)
	return nlbatch.AppendString(b, unix.NFTA_CHAIN_NAME, string(c))
}

// Create creates the chain if it does not exist.
func (c Chain) Create() nlbatch.Request {
	return request(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, c.name())
}

// CreateBase creates the base chain if it does not exist, and sets its policy.
func (c Chain) CreateBase(h Hook) nlbatch.Request {
	b := nlbatch.AppendNest(c.name(), unix.NFTA_CHAIN_HOOK, func(b []byte) []byte {
		b = nlbatch.AppendBigUint32(b, unix.NFTA_HOOK_HOOKNUM, h.Number)
		return nlbatch.AppendBigUint32(b, unix.NFTA_HOOK_PRIORITY, uint32(h.Priority))
	})
	b = nlbatch.AppendBigUint32(b, unix.NFTA_CHAIN_POLICY, Accept)
	return request(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, nlbatch.AppendString(b, unix.NFTA_CHAIN_TYPE, h.Type))
}

// Flush deletes the rules of the chain.
func (c Chain) Flush() nlbatch.Request { return request(unix.NFT_MSG_DELRULE, 0, c.rules()) }

// Delete deletes the chain, which must have no rules.
func (c Chain) Delete() nlbatch.Request { return request(unix.NFT_MSG_DELCHAIN, 0, c.name()) }

// RemoveChains deletes chains. It deletes all their rules first, because the chains jump to each other.
func RemoveChains(names []string) []nlbatch.Request {
	var flushes, deletions []nlbatch.Request
	for _, name := range names {
		flushes, deletions = append(flushes, Chain(name).Flush()), append(deletions, Chain(name).Delete())
	}
	return slices.Concat(flushes, deletions)
}

// ListedChain is a chain in the kernel. Its hook is zero unless it is a base chain. Used is the number of its rules, and of the jumps to it.
type ListedChain struct {
	Name   string
	Hook   Hook
	Policy uint32
	Family byte
	Used   uint32
}

var chains = kind[ListedChain]{unix.NFT_MSG_GETCHAIN, func(name string) []byte { return Chain(name).name() }, DecodeChain}

// Chains returns the names of all chains of the table, sorted.
func (c *Conn) Chains(ctx context.Context) ([]string, error) {
	all, err := chains.all(ctx, c, nil)
	return slices.Sorted(maps.Keys(all)), err
}

// LookupChains returns the chains with these names that exist, sorted.
func (c *Conn) LookupChains(ctx context.Context, names []string) ([]ListedChain, error) {
	all, err := chains.lookup(ctx, c, names)
	return slices.SortedFunc(maps.Values(all), func(a, b ListedChain) int { return strings.Compare(a.Name, b.Name) }), err
}

// DecodeChain parses a message about a chain.
func DecodeChain(payload []byte) (table, name string, c ListedChain, err error) {
	a, err := parse(payload)
	hook, wrong := nested(a[unix.NFTA_CHAIN_HOOK])
	err = errors.Join(err, wrong)
	c = ListedChain{
		Name: a.Text(unix.NFTA_CHAIN_NAME), Policy: a.number(unix.NFTA_CHAIN_POLICY, &err), Hook: Hook{
			a.Text(unix.NFTA_CHAIN_TYPE), hook.number(unix.NFTA_HOOK_HOOKNUM, &err), int32(hook.number(unix.NFTA_HOOK_PRIORITY, &err)),
		},
		Family: familyOf(payload), Used: a.number(unix.NFTA_CHAIN_USE, &err),
	}
	return a.Text(unix.NFTA_CHAIN_TABLE), c.Name, c, err
}

func (c Chain) rules() []byte {
	b := nlbatch.AppendString(nil, unix.NFTA_RULE_TABLE, TableName)
	if c == "" {
		return b
	}
	return nlbatch.AppendString(b, unix.NFTA_RULE_CHAIN, string(c))
}

// Append adds a rule at the end of the chain.
func (c Chain) Append(program []byte, text string) nlbatch.Request {
	return c.append(program, comment(text))
}

// Copy adds a rule with the expressions and the comment of another rule.
func (c Chain) Copy(r ListedRule) nlbatch.Request { return c.append(r.Program, r.userData) }

func (c Chain) append(program, userData []byte) nlbatch.Request {
	b := nlbatch.AppendAttr(c.rules(), unix.NFTA_RULE_EXPRESSIONS|unix.NLA_F_NESTED, program)
	if userData != nil {
		b = nlbatch.AppendAttr(b, unix.NFTA_RULE_USERDATA, userData)
	}
	return request(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, b)
}

// Remove deletes a rule of the chain.
func (c Chain) Remove(r ListedRule) nlbatch.Request {
	return request(unix.NFT_MSG_DELRULE, 0, nlbatch.AppendAttr(c.rules(), unix.NFTA_RULE_HANDLE, r.handle))
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

// commentOf returns the comment in the user data of a rule. Each entry of the user data has a type, a length and a value.
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

// ListedRule is a rule in the kernel.
type ListedRule struct {
	Family                    byte
	Table, Chain, Comment     string
	Program, userData, handle []byte
	Attributes                []byte
}

// Handle returns the number that identifies the rule in its table.
func (r ListedRule) Handle() uint64 { return new(big.Int).SetBytes(r.handle).Uint64() }

// Rules lists the rules of a chain, or of all chains if the name is empty. If the list is torn, it returns the last attempt with the
// error nlbatch.ErrDumpInterrupted.
func (c *Conn) Rules(ctx context.Context, chain Chain) (rules []ListedRule, err error) {
	payloads, err := c.dump(ctx, unix.NFT_MSG_GETRULE, chain.rules())
	if errors.Is(err, unix.ENOENT) {
		return nil, nil // deleted in the meantime
	}
	for _, p := range payloads {
		r, wrong := DecodeRule(p)
		err = errors.Join(err, wrong)
		if r.Table == TableName {
			rules = append(rules, r)
		}
	}
	return rules, err
}

// DecodeRule parses a message about a rule.
func DecodeRule(payload []byte) (r ListedRule, err error) {
	r.Attributes = payload[min(len(payload), nfgenHeaderLen):]
	a, err := nested(r.Attributes)
	r.Family, r.Table, r.Chain, r.Comment = familyOf(payload), a.Text(unix.NFTA_RULE_TABLE), a.Text(unix.NFTA_RULE_CHAIN), commentOf(a[unix.NFTA_RULE_USERDATA])
	r.Program, r.userData, r.handle = a[unix.NFTA_RULE_EXPRESSIONS], a[unix.NFTA_RULE_USERDATA], a[unix.NFTA_RULE_HANDLE]
	return r, err
}

// Expression is an expression of a rule, with its attributes.
type Expression struct {
	Name string
	Attrs
}

// Expressions parses the program of a rule.
func (r ListedRule) Expressions() (all []Expression, err error) {
	err = nlbatch.EachAttr(r.Program, func(_ uint16, v []byte) error {
		e, err := DecodeExpression(v)
		all = append(all, e)
		return err
	})
	return all, err
}

// DecodeExpression parses an expression of a rule or of a set's element.
func DecodeExpression(b []byte) (Expression, error) {
	e, err := nested(b)
	attrs, wrong := nested(e[unix.NFTA_EXPR_DATA])
	return Expression{e.Text(unix.NFTA_EXPR_NAME), attrs}, errors.Join(err, wrong)
}
