package ipvs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// Read returns all virtual servers of the namespace, including foreign ones, except firewall-mark servers. Only Lookup reads persistent
// connections and destinations' connection limits.
func (b *Backend) Read(ctx context.Context) (map[kernel.ServerKey]kernel.ObservedServer, error) {
	// This call detects that the module was reloaded, which changes the number of the netlink family.
	if err := b.resolve(ctx); err != nil {
		return nil, fmt.Errorf("read IPVS: %w", err)
	}
	servers, err := b.dumpServers(ctx)
	if err != nil {
		return nil, fmt.Errorf("read IPVS: %w", err)
	}
	text, err := os.ReadFile(procFile)
	if err != nil {
		return nil, fmt.Errorf("read IPVS: %w", err)
	}
	dests, err := parseProc(text)
	if err != nil {
		return nil, fmt.Errorf("read IPVS: %s: %w", procFile, err)
	}
	for _, d := range dests {
		sortDestinations(d)
	}
	observed, unsure := join(servers, dests)
	lookedUp, err := b.Lookup(ctx, unsure)
	if err != nil {
		return nil, fmt.Errorf("read IPVS: %w", err)
	}
	for key, server := range lookedUp {
		observed[key] = server
	}
	return observed, nil
}

// join combines servers and destinations. If another program changes the table between the two reads, either read can miss an existing
// server, so keys that only one read returned are uncertain and must be looked up.
func join(servers map[kernel.ServerKey]kernel.Server, dests destinations) (
	observed map[kernel.ServerKey]kernel.ObservedServer, unsure []kernel.ServerKey,
) {
	observed = make(map[kernel.ServerKey]kernel.ObservedServer, len(servers))
	for key, server := range servers {
		d, ok := dests[key]
		if !ok {
			unsure = append(unsure, key)
			continue
		}
		observed[key] = kernel.ObservedServer{Server: server, Destinations: d}
	}
	for key := range dests {
		if _, ok := servers[key]; !ok {
			unsure = append(unsure, key)
		}
	}
	return observed, unsure
}

func sortDestinations(d []kernel.ObservedDestination) {
	slices.SortFunc(d, func(a, b kernel.ObservedDestination) int { return a.Compare(b.Destination) })
}

func (b *Backend) dumpServers(ctx context.Context) (map[kernel.ServerKey]kernel.Server, error) {
	payloads, err := b.conn.Dump(ctx, b.request(cmdGetService, nil))
	if err != nil {
		return nil, fmt.Errorf("dump virtual servers: %w", err)
	}
	servers := make(map[kernel.ServerKey]kernel.Server, len(payloads))
	for _, p := range payloads {
		server, ok, err := decodeServer(p)
		if err != nil {
			return nil, err
		}
		if ok {
			servers[server.Key] = server
		}
	}
	return servers, nil
}

// Lookup reads virtual servers by key, with all details of their destinations. Virtual servers that do not exist are
// absent from the result.
func (b *Backend) Lookup(ctx context.Context, keys []kernel.ServerKey) (map[kernel.ServerKey]kernel.ObservedServer, error) {
	reqs := make([]nlbatch.Request, len(keys))
	for i, key := range keys {
		reqs[i] = b.request(cmdGetService, encodeKey(key))
	}
	found := make(map[kernel.ServerKey]kernel.ObservedServer, len(keys))
	answers, errs := b.get(ctx, reqs...)
	for i, key := range keys {
		if errors.Is(errs[i], unix.ESRCH) {
			continue
		}
		if errs[i] != nil {
			return nil, fmt.Errorf("look up virtual server %s: %w", key, errs[i])
		}
		server, err := b.observe(ctx, key, answers[i])
		if err != nil {
			return nil, fmt.Errorf("look up virtual server %s: %w", key, err)
		}
		found[key] = server
	}
	return found, nil
}

func (b *Backend) observe(ctx context.Context, key kernel.ServerKey, answer []nlbatch.Message) (kernel.ObservedServer, error) {
	if len(answer) != 1 {
		return kernel.ObservedServer{}, fmt.Errorf("%d answers instead of one", len(answer))
	}
	server, _, err := decodeServer(answer[0].Payload)
	if err != nil {
		return kernel.ObservedServer{}, err
	}
	// Dump one at a time: the kernel runs a single dump per socket.
	observed := kernel.ObservedServer{Server: server}
	err = b.conn.Walk(ctx, b.request(cmdGetDest, encodeKey(key)), func(payload []byte) error {
		d, err := decodeDestination(payload, key.Family())
		observed.Destinations = append(observed.Destinations, d)
		return err
	})
	if err != nil {
		return kernel.ObservedServer{}, fmt.Errorf("dump destinations: %w", err)
	}
	sortDestinations(observed.Destinations)
	return observed, nil
}
