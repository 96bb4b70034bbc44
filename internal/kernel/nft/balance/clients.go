package balance

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft/wire"
)

// Clients lists the endpoints that session affinity has assigned to clients of a virtual server, in the form of IPVS' persistence
// templates: the client has no port. It can miss records that packets add meanwhile.
func (b *Balancer) Clients(ctx context.Context, key kernel.ServerKey) (all []kernel.Connection, err error) {
	err = b.conn.Elements(ctx, wire.Set(kernel.ClientsMap(key)), func(e wire.Element) error {
		client, ok := netip.AddrFromSlice([]byte(e.Key))
		endpoint, err := parseEndpoint([]byte(e.Value))
		if !ok || err != nil {
			return errElement
		}
		all = append(all, kernel.Connection{
			Protocol: key.Protocol.String(), Client: netip.AddrPortFrom(client, 0), Virtual: key.Addr, Destination: endpoint, State: "NONE",
			Expires: kernel.Seconds(e.Left),
		})
		return nil
	})
	switch {
	case errors.Is(err, unix.ENOENT): // deleted in the meantime
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("list clients of %s: %w", key, err)
	}
	return all, nil
}
