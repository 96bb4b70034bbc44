package ipvs

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// Inspect reads everything that the kernel reports about IPVS.
func (b *Backend) Inspect(ctx context.Context) (kernel.Table, error) {
	info, err := b.info(ctx)
	if err != nil {
		return kernel.Table{}, fmt.Errorf("inspect IPVS: %w", err)
	}
	payloads, err := b.conn.Dump(ctx, b.request(cmdGetService, nil))
	if err != nil {
		return kernel.Table{}, fmt.Errorf("inspect IPVS: dump virtual servers: %w", err)
	}
	table := kernel.Table{Info: info, Servers: make([]kernel.TableServer, len(payloads))}
	for i, p := range payloads {
		if table.Servers[i], err = b.inspectService(ctx, p); err != nil {
			return kernel.Table{}, fmt.Errorf("inspect IPVS: %w", err)
		}
	}
	return table, nil
}

// MarkServers reads the virtual servers for packets with a firewall mark.
func (b *Backend) MarkServers(ctx context.Context) (servers []kernel.TableServer, err error) {
	payloads, err := b.conn.Dump(ctx, b.request(cmdGetService, nil))
	if err != nil {
		return nil, fmt.Errorf("read virtual servers for firewall marks: %w", err)
	}
	for _, p := range payloads {
		_, hasAddress, err := decodeServer(p)
		if err != nil || hasAddress {
			continue
		}
		s, err := b.inspectService(ctx, p)
		if err != nil {
			return nil, fmt.Errorf("read virtual servers for firewall marks: %w", err)
		}
		servers = append(servers, s)
	}
	return servers, nil
}

// InspectOne reads one virtual server. The second result is false if it does not exist.
func (b *Backend) InspectOne(ctx context.Context, key kernel.TableKey) (kernel.TableServer, bool, error) {
	answers, errs := b.get(ctx, b.request(cmdGetService, encodeTableKey(key)))
	if errors.Is(errs[0], unix.ESRCH) {
		return kernel.TableServer{}, false, nil
	}
	if errs[0] != nil {
		return kernel.TableServer{}, false, fmt.Errorf("inspect virtual server: %w", errs[0])
	}
	if len(answers[0]) != 1 {
		return kernel.TableServer{}, false, fmt.Errorf("inspect virtual server: %d answers instead of one", len(answers[0]))
	}
	service, err := b.inspectService(ctx, answers[0][0].Payload)
	if err != nil {
		return kernel.TableServer{}, false, fmt.Errorf("inspect virtual server: %w", err)
	}
	return service, true, nil
}

// inspectService decodes a virtual server and reads its destinations. If the server was deleted in the meantime, it has no
// destinations.
func (b *Backend) inspectService(ctx context.Context, payload []byte) (kernel.TableServer, error) {
	service, err := decodeTableService(payload)
	if err != nil {
		return kernel.TableServer{}, err
	}
	payloads, err := b.conn.Dump(ctx, b.request(cmdGetDest, encodeTableKey(service.Key)))
	if err != nil {
		return kernel.TableServer{}, fmt.Errorf("dump destinations: %w", err)
	}
	service.Destinations = make([]kernel.TableDestination, len(payloads))
	for i, p := range payloads {
		if service.Destinations[i], err = decodeTableDestination(p, service.Key.Family); err != nil {
			return kernel.TableServer{}, err
		}
	}
	return service, nil
}
