package nft

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// replaceSet changes the parameters of a set. The kernel cannot do that, so one transaction deletes the set and creates it again with the
// members that fit. It also recreates the rules that look the set up, from the expressions that the kernel returned. Each packet sees
// either the old or the new set and rules.
func (b *Backend) replaceSet(ctx context.Context, want kernel.Set) error {
	sets, err := b.named(ctx, []string{want.Name})
	if err != nil {
		return fmt.Errorf("read sets: %w", err)
	}
	have, exists := sets[want.Name]
	if !exists {
		return kernel.ErrNotFound
	}
	if have == want {
		return nil
	}
	make, err := newSet(want)
	if err != nil {
		return err
	}
	reqs := []nlbatch.Request{deleteSet(want.Name), make}
	if have.Type == want.Type && have.Family == want.Family {
		reqs, err = b.keeping(ctx, have, want, reqs)
	}
	return errors.Join(err, b.commit(ctx, reqs))
}

// keeping adds the requests that recreate members and rules.
func (b *Backend) keeping(ctx context.Context, have, want kernel.Set, replace []nlbatch.Request) ([]nlbatch.Request, error) {
	members, err := b.allMembers(ctx, have)
	if err != nil {
		return nil, fmt.Errorf("read members: %w", err)
	}
	if len(members) <= int(want.MaxElem) {
		for elements := range slices.Chunk(slices.Collect(maps.Keys(members)), maxEntries) {
			req, err := elementRequest(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, want, elements...)
			if err != nil {
				return nil, err
			}
			replace = append(replace, req)
		}
	}
	flushes, rules, err := b.users(ctx, want.Name)
	return slices.Concat(flushes, replace, rules), err
}

// users returns the requests that empty each chain with a rule that looks a set up, and those that fill it again.
func (b *Backend) users(ctx context.Context, set string) (flushes, rules []nlbatch.Request, err error) {
	chains, err := b.allChains(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("read chains: %w", err)
	}
	for _, name := range chains {
		if _, _, ours := parseChain(name); !ours {
			continue // rules of a Balancer look up maps
		}
		payloads, err := b.rules(ctx, name)
		if err != nil {
			return nil, nil, fmt.Errorf("read rules of %s: %w", name, err)
		}
		if !slices.ContainsFunc(payloads, func(p []byte) bool { return looksUp(p, set) }) {
			continue
		}
		flushes = append(flushes, flushChain(name))
		for _, p := range payloads {
			rules = append(rules, copyRule(name, p))
		}
	}
	return flushes, rules, nil
}

// copyRule recreates a rule from the expressions that the kernel listed.
func copyRule(chain string, payload []byte) nlbatch.Request {
	b := rulesOf(chain)
	_ = eachAttr(payload, func(typ uint16, v []byte) error {
		switch typ {
		case unix.NFTA_RULE_EXPRESSIONS:
			b = nlbatch.AppendAttr(b, typ|unix.NLA_F_NESTED, v)
		case unix.NFTA_RULE_USERDATA:
			b = nlbatch.AppendAttr(b, typ, v)
		}
		return nil
	})
	return request(unix.NFT_MSG_NEWRULE, unix.NLM_F_CREATE|unix.NLM_F_APPEND, b)
}

// looksUp reports whether a rule has an expression that looks the set up.
func looksUp(payload []byte, set string) (found bool) {
	_ = eachAttr(payload, func(typ uint16, v []byte) error {
		if typ != unix.NFTA_RULE_EXPRESSIONS {
			return nil
		}
		return nlbatch.EachAttr(v, func(_ uint16, v []byte) error {
			name, parameters := "", []byte(nil)
			if err := nlbatch.EachAttr(v, func(typ uint16, v []byte) error {
				switch typ {
				case unix.NFTA_EXPR_NAME:
					name = nlbatch.String(v)
				case unix.NFTA_EXPR_DATA:
					parameters = v
				}
				return nil
			}); err != nil || name != "lookup" {
				return err
			}
			return nlbatch.EachAttr(parameters, func(typ uint16, v []byte) error {
				found = found || typ == unix.NFTA_LOOKUP_SET && nlbatch.String(v) == set
				return nil
			})
		})
	})
	return found
}
