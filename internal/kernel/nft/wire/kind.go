package wire

import (
	"context"
	"maps"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// kind describes how to list and look up one kind of named object: chains, or sets and maps.
type kind[T any] struct {
	get    uint16
	attrs  func(name string) []byte
	decode func(payload []byte) (table, name string, object T, err error)
}

// all returns the objects of the table by name. If the list is torn, all looks up each object.
func (k kind[T]) all(ctx context.Context, c *Conn, attrs []byte) (map[string]T, error) {
	tries, torn, err := c.list(ctx, k.get, attrs)
	if err != nil {
		return nil, err
	}
	all, err := k.byName(slices.Concat(tries...))
	if torn && err == nil {
		return k.lookup(ctx, c, slices.Collect(maps.Keys(all)))
	}
	return all, err
}

func (k kind[T]) lookup(ctx context.Context, c *Conn, names []string) (map[string]T, error) {
	reqs := make([]nlbatch.Request, len(names))
	for i, name := range names {
		reqs[i] = request(k.get, 0, k.attrs(name))
	}
	answers, err := c.Get(ctx, reqs)
	if err != nil {
		return nil, err
	}
	var payloads [][]byte
	for _, m := range slices.Concat(answers...) {
		payloads = append(payloads, m.Payload)
	}
	return k.byName(payloads)
}

func (k kind[T]) byName(payloads [][]byte) (map[string]T, error) {
	all := map[string]T{}
	for _, p := range payloads {
		table, name, object, err := k.decode(p)
		if err != nil {
			return nil, err
		}
		if table == TableName {
			all[name] = object
		}
	}
	return all, nil
}
