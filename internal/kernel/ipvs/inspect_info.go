package ipvs

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

const (
	cmdGetDaemon = 11
	cmdGetInfo   = 15

	attrDaemon = 3

	infoVersion  = 1
	infoConnSize = 2

	daemonState     = 1
	daemonInterface = 2
	daemonSyncID    = 3
	daemonMaxLen    = 4
	daemonGroup4    = 5
	daemonGroup6    = 6
	daemonPort      = 7
	daemonTTL       = 8
)

func (b *Backend) info(ctx context.Context) (kernel.TableInfo, error) {
	answers, errs := b.get(ctx, b.request(cmdGetInfo, nil))
	if errs[0] != nil {
		return kernel.TableInfo{}, fmt.Errorf("read version: %w", errs[0])
	}
	var info kernel.TableInfo
	for _, m := range answers[0] {
		if err := decodeInfo(&info, m.Payload); err != nil {
			return kernel.TableInfo{}, fmt.Errorf("read version: %w", err)
		}
	}
	return info, nil
}

func decodeInfo(i *kernel.TableInfo, payload []byte) error {
	attrs, err := body(payload)
	if err != nil {
		return err
	}
	return nlbatch.EachAttr(attrs, func(typ uint16, v []byte) (err error) {
		switch typ {
		case infoVersion:
			i.Version, err = nlbatch.Uint32(v)
		case infoConnSize:
			i.ConnSize, err = nlbatch.Uint32(v)
		}
		return err
	})
}

// Daemons lists the synchronization daemons.
func (b *Backend) Daemons(ctx context.Context) ([]kernel.Daemon, error) {
	payloads, err := b.conn.Dump(ctx, b.request(cmdGetDaemon, nil))
	if err != nil {
		return nil, fmt.Errorf("list IPVS daemons: %w", err)
	}
	daemons := make([]kernel.Daemon, len(payloads))
	for i, p := range payloads {
		if err := eachNested(p, attrDaemon, daemonDecoder(&daemons[i])); err != nil {
			return nil, fmt.Errorf("list IPVS daemons: %w", err)
		}
	}
	return daemons, nil
}

func daemonDecoder(d *kernel.Daemon) func(typ uint16, v []byte) error {
	return func(typ uint16, v []byte) (err error) {
		switch typ {
		case daemonState:
			var n uint32
			n, err = nlbatch.Uint32(v)
			d.State = kernel.DaemonState(n)
		case daemonInterface:
			d.Interface = nlbatch.String(v)
		case daemonSyncID:
			d.SyncID, err = nlbatch.Uint32(v)
		case daemonMaxLen:
			d.MaxLen, err = nlbatch.Uint16(v)
		case daemonGroup4, daemonGroup6:
			d.Group, err = group(v)
		case daemonPort:
			d.Port, err = nlbatch.Uint16(v)
		case daemonTTL:
			d.TTL, err = nlbatch.Uint8(v)
		}
		return err
	}
}

func group(v []byte) (netip.Addr, error) {
	addr, ok := netip.AddrFromSlice(v)
	if !ok {
		return netip.Addr{}, fmt.Errorf("multicast group of %d bytes", len(v))
	}
	return addr, nil
}
