package nft

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// This file finds and repairs changes by other programs that keep packets away from existing rules: a dormant table, a base chain with
// another policy, or one with another hook.

// tableDormant is NFT_TABLE_F_DORMANT.
const tableDormant = 1

// listedChain is a chain in the kernel. Its hook is zero unless it is a base chain.
type listedChain struct {
	name   string
	hook   hook
	policy uint32
}

// wantedBase is a base chain as the agent creates it. rules recreate the chain with its rules, unless a ruleset does.
type wantedBase struct {
	family inet.Family
	hook   hook
	rules  []nlbatch.Request
}

var wantedBases = allBases()

func allBases() map[string]wantedBase {
	all := map[string]wantedBase{}
	for _, f := range inet.Families {
		for id, h := range baseChains {
			all[chainName(f, id)] = wantedBase{family: f, hook: h}
		}
		for _, c := range recordingChains(f) {
			all[c.name] = wantedBase{family: f, hook: c.hook, rules: c.requests()}
		}
	}
	return all
}

// altered is what other programs changed around the rules.
type altered struct {
	flags  uint32 // of the table
	chains []listedChain
}

func (b *Backend) altered(ctx context.Context, all []listedChain) (a altered, err error) {
	t, err := b.table(ctx)
	a.flags = t.flags
	for _, c := range all {
		if w, base := wantedBases[c.name]; base && (c.hook != w.hook || c.policy != nfAccept) {
			a.chains = append(a.chains, c)
		}
	}
	return a, err
}

func (a altered) dormant() bool { return a.flags&tableDormant != 0 }

// family reports whether these changes affect packets of a family.
func (a altered) family(f inet.Family) bool {
	return a.dormant() || slices.ContainsFunc(a.chains, func(c listedChain) bool { return wantedBases[c.name].family == f })
}

// repair undoes the changes. It deletes chains with another hook; a ruleset then creates them again.
func (a altered) repair() []nlbatch.Request {
	var reqs []nlbatch.Request
	if a.dormant() {
		b := nlbatch.AppendString(nil, unix.NFTA_TABLE_NAME, Table)
		reqs = append(reqs, request(unix.NFT_MSG_NEWTABLE, 0, appendBigUint32(b, unix.NFTA_TABLE_FLAGS, a.flags&^tableDormant)))
	}
	for _, c := range a.chains {
		w := wantedBases[c.name]
		if c.hook == w.hook {
			reqs = append(reqs, newBaseChain(c.name, w.hook))
			continue
		}
		reqs = slices.Concat(reqs, removal([]string{c.name}), w.rules)
	}
	return reqs
}

func (b *Backend) restoreHooks(ctx context.Context) error {
	all, err := b.readable(ctx)
	if err != nil {
		return fmt.Errorf("read chains: %w", err)
	}
	changed, err := b.altered(ctx, all)
	if err != nil {
		return fmt.Errorf("read tables: %w", err)
	}
	if reqs := changed.repair(); len(reqs) > 0 {
		return b.commit(ctx, reqs)
	}
	return nil
}

// decodeChains returns the chains of the table.
func decodeChains(payloads [][]byte) (all []listedChain, err error) {
	for _, p := range payloads {
		table, c, err := decodeChain(p)
		if err != nil {
			return nil, err
		}
		if table == Table {
			all = append(all, c)
		}
	}
	return all, nil
}

func decodeChain(payload []byte) (table string, c listedChain, err error) {
	err = eachAttr(payload, func(typ uint16, v []byte) (err error) {
		switch typ {
		case unix.NFTA_CHAIN_TABLE:
			table = nlbatch.String(v)
		case unix.NFTA_CHAIN_NAME:
			c.name = nlbatch.String(v)
		case unix.NFTA_CHAIN_TYPE:
			c.hook.typ = nlbatch.String(v)
		case unix.NFTA_CHAIN_POLICY:
			c.policy, err = nlbatch.BigUint32(v)
		case unix.NFTA_CHAIN_HOOK:
			err = c.hook.decode(v)
		}
		return err
	})
	return table, c, err
}

func (h *hook) decode(nest []byte) error {
	return nlbatch.EachAttr(nest, func(typ uint16, v []byte) (err error) {
		switch typ {
		case unix.NFTA_HOOK_HOOKNUM:
			h.number, err = nlbatch.BigUint32(v)
		case unix.NFTA_HOOK_PRIORITY:
			var priority uint32
			priority, err = nlbatch.BigUint32(v)
			h.priority = int32(priority)
		}
		return err
	})
}
