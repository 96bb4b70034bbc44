package iptables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft/wire"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/sockopt"
)

// Summarizer detects possible changes to the rules. It starts no process and needs no lock.
type Summarizer struct {
	variant  Variant
	families []inet.Family
	tables   []string
	// chains are the owned chains, and the built-in chains of the same tables.
	chains []kernel.ChainID
	ours   map[kernel.ChainID]bool

	// conn, generation and last are used only with nftables. last is the result for that generation.
	conn       *nlbatch.Conn
	generation uint32
	last       map[inet.Family]uint64
	// sockets are used only with iptables-legacy.
	sockets map[inet.Family]*sockopt.Socket
}

// Summarizer opens a Summarizer in the calling thread's network namespace.
func (b *Backend) Summarizer() (*Summarizer, error) {
	s := &Summarizer{
		variant: b.variant, families: b.families, ours: b.ours, tables: slices.Sorted(maps.Keys(b.tables)),
		chains: slices.Collect(maps.Keys(b.ours)), sockets: map[inet.Family]*sockopt.Socket{},
	}
	for _, table := range s.tables {
		for chain := range builtIn {
			s.chains = append(s.chains, kernel.ChainID{Table: table, Chain: chain})
		}
	}
	slices.SortFunc(s.chains, func(a, b kernel.ChainID) int { return strings.Compare(a.String(), b.String()) })
	var err error
	if s.variant == NFT {
		if s.conn, err = nlbatch.Dial(unix.NETLINK_NETFILTER); err != nil {
			return nil, fmt.Errorf("open nftables: %w", err)
		}
		return s, nil
	}
	for _, f := range s.families {
		socket, err := sockopt.Open(f)
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
		s.sockets[f] = socket
	}
	return s, nil
}

// Close closes the sockets.
func (s *Summarizer) Close() error {
	var errs []error
	for _, socket := range s.sockets {
		errs = append(errs, socket.Close())
	}
	if s.conn != nil {
		errs = append(errs, s.conn.Close())
	}
	return errors.Join(errs...)
}

// Stats counts the netlink requests made so far.
func (s *Summarizer) Stats() nlbatch.Stats {
	if s.conn == nil {
		return nlbatch.Stats{}
	}
	return s.conn.Stats()
}

// Generation returns the generation of nftables of the last Read, or 0 with iptables-legacy.
func (s *Summarizer) Generation() uint32 { return s.generation }

// Read returns the values for kernel.Summary.Rules, or nil while another program is writing rules.
func (s *Summarizer) Read(ctx context.Context) (map[inet.Family]uint64, error) {
	if s.variant == NFT {
		return s.readNFT(ctx)
	}
	read := make(map[inet.Family]uint64, len(s.families))
	for _, f := range s.families {
		sum := fnv.New64a()
		for _, table := range s.tables {
			info, err := s.tableInfo(f, table)
			if err != nil {
				return nil, fmt.Errorf("read size of table %s: %w", table, err)
			}
			_, _ = sum.Write(info)
		}
		read[f] = sum.Sum64()
	}
	return read, nil
}

const (
	// optionTableInfo is IPT_SO_GET_INFO and IP6T_SO_GET_INFO.
	optionTableInfo = 64
	// Sizes in struct ipt_getinfo: the name, followed by the positions of built-in chains, the number of entries and the size.
	tableNameSize = 32
	tableInfoSize = tableNameSize + 4*(1+5+5+1+1)
)

func (s *Summarizer) tableInfo(f inet.Family, table string) ([]byte, error) {
	buf := make([]byte, tableInfoSize)
	copy(buf, table)
	err := s.sockets[f].Get(optionTableInfo, buf)
	return buf[tableNameSize:], err
}

// readNFT requests the generation, which changes with every change in any table. It lists the chains of interest only after a change,
// because a busy network plug-in changes its own chains constantly.
func (s *Summarizer) readNFT(ctx context.Context) (map[inet.Family]uint64, error) {
	generation, err := wire.Generation(ctx, s.conn)
	if err != nil {
		return nil, err
	}
	if s.last != nil && generation == s.generation {
		return s.last, nil
	}
	read := make(map[inet.Family]uint64, len(s.families))
	for _, f := range s.families {
		read[f], err = s.sum(ctx, f)
		if errors.Is(err, nlbatch.ErrDumpInterrupted) {
			return nil, nil // the next call reads again
		}
		if err != nil {
			return nil, fmt.Errorf("list %s rules: %w", f, err)
		}
	}
	s.generation, s.last = generation, read
	return read, nil
}

const nftHeader = 4 // the length of struct nfgenmsg

func eachNFTAttr(payload []byte, handle func(uint16, []byte) error) error {
	return nlbatch.EachAttr(payload[min(len(payload), nftHeader):], handle)
}

var nftFamilyNumbers = map[inet.Family]byte{inet.IPv4: unix.NFPROTO_IPV4, inet.IPv6: unix.NFPROTO_IPV6}

// sum hashes the handles of the rules, which the kernel never reuses.
func (s *Summarizer) sum(ctx context.Context, f inet.Family) (uint64, error) {
	sum := fnv.New64a()
	for _, id := range s.chains {
		handles, err := s.handles(ctx, f, id)
		if err != nil {
			return 0, err
		}
		_, _ = sum.Write([]byte(id.String()))
		_, _ = sum.Write(handles)
	}
	return sum.Sum64(), nil
}

// handles returns the handles of a chain's rules in order. In a built-in chain, it stops after our last jump. The result is empty if the
// chain does not exist.
func (s *Summarizer) handles(ctx context.Context, f inet.Family, id kernel.ChainID) ([]byte, error) {
	payload := nlbatch.AppendString([]byte{nftFamilyNumbers[f], 0, 0, 0}, unix.NFTA_RULE_TABLE, id.Table)
	payload = nlbatch.AppendString(payload, unix.NFTA_RULE_CHAIN, id.Chain)
	var handles []byte
	ours := 0
	err := s.conn.Walk(ctx, nlbatch.Request{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETRULE, Payload: payload}, func(p []byte) error {
		err := eachNFTAttr(p, func(typ uint16, v []byte) error {
			if typ == unix.NFTA_RULE_HANDLE {
				handles = append(handles, v...)
			}
			return nil
		})
		// Different versions of iptables store the comment in different places.
		if s.ours[id] || bytes.Contains(p, tagBytes) {
			ours = len(handles)
		}
		return err
	})
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	return handles[:ours], err
}

var tagBytes = []byte(kernel.TagPrefix)
