package netdev

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

const (
	neighborHeader = 12 // struct ndmsg
	queueHeader    = 20 // struct tcmsg
)

// neighborStates are the names that `ip neigh` prints.
var neighborStates = map[uint16]string{
	unix.NUD_INCOMPLETE: "INCOMPLETE", unix.NUD_REACHABLE: "REACHABLE", unix.NUD_STALE: "STALE", unix.NUD_DELAY: "DELAY", unix.NUD_PROBE: "PROBE",
	unix.NUD_FAILED: "FAILED", unix.NUD_NOARP: "NOARP", unix.NUD_PERMANENT: "PERMANENT",
}

// Neighbors lists the neighbor tables of both families.
func (b *Backend) Neighbors(ctx context.Context) (all []kernel.Neighbor, err error) {
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
		header := make([]byte, neighborHeader)
		header[0] = family
		payloads, err := b.dump(ctx, nlbatch.Request{Type: unix.RTM_GETNEIGH, Payload: header})
		for _, payload := range payloads {
			var n kernel.Neighbor
			if n, err = parseNeighbor(payload); err != nil {
				break
			}
			if n.State != "" && n.Addr.IsValid() {
				all = append(all, n)
			}
		}
		if err != nil {
			return nil, fmt.Errorf("list the neighbors of this node: %w", err)
		}
	}
	return all, nil
}

func parseNeighbor(b []byte) (n kernel.Neighbor, err error) {
	if len(b) < neighborHeader {
		return n, fmt.Errorf("read neighbor: message of %d bytes", len(b))
	}
	index, _ := nlbatch.Uint32(b[4:])
	state, _ := nlbatch.Uint16(b[8:])
	n = kernel.Neighbor{Interface: int(index), State: neighborStates[state], Learned: b[10]&unix.NTF_EXT_LEARNED != 0}
	err = nlbatch.EachAttr(b[neighborHeader:], func(typ uint16, v []byte) error {
		switch typ {
		case unix.NDA_DST:
			addr, _ := netip.AddrFromSlice(v)
			n.Addr = addr.Unmap()
		case unix.NDA_LLADDR:
			n.MAC = net.HardwareAddr(v).String()
		}
		return nil
	})
	return n, err
}

// Queues lists the queueing disciplines of this node's interfaces. It omits noqueue, which has no settings.
func (b *Backend) Queues(ctx context.Context) (all []kernel.Queue, err error) {
	payloads, err := b.dump(ctx, nlbatch.Request{Type: unix.RTM_GETQDISC, Payload: make([]byte, queueHeader)})
	for _, payload := range payloads {
		var q kernel.Queue
		if q, err = parseQueue(payload); err != nil {
			break
		}
		if q.Kind != "noqueue" {
			all = append(all, q)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("list the queueing disciplines of this node: %w", err)
	}
	return all, nil
}

func parseQueue(b []byte) (q kernel.Queue, err error) {
	if len(b) < queueHeader {
		return q, fmt.Errorf("read queueing discipline: message of %d bytes", len(b))
	}
	index, _ := nlbatch.Uint32(b[4:])
	q.Interface = int(index)
	var options []byte
	err = nlbatch.EachAttr(b[queueHeader:], func(typ uint16, v []byte) error {
		switch typ {
		case unix.TCA_KIND:
			q.Kind = nlbatch.String(v)
		case unix.TCA_OPTIONS:
			options = v
		case unix.TCA_STATS2:
			return nlbatch.EachAttr(v, func(typ uint16, v []byte) error {
				if typ == statsQueue && len(v) > dropsOffset {
					drops, err := nlbatch.Uint32(v[dropsOffset:])
					q.Drops = uint64(drops)
					return err
				}
				return nil
			})
		}
		return nil
	})
	if err == nil {
		err = addOptions(&q, options)
	}
	return q, err
}

const (
	statsQueue  = 3 // TCA_STATS_QUEUE
	dropsOffset = 8 // in struct gnet_stats_queue
	// netem's delay is in units of 64 nanoseconds, and its loss is a fraction of 2³².
	netemTick   = 64 * time.Nanosecond
	netemWhole  = 1 << 32
	netemFields = 12
)

// limits are the attributes that contain the limit of a queueing discipline, from linux/pkt_sched.h.
var limits = map[string]uint16{"fq": 1, "codel": 2, "fq_codel": 2}

func addOptions(q *kernel.Queue, options []byte) error {
	switch q.Kind {
	case "pfifo", "bfifo", "pfifo_head_drop": // struct tc_fifo_qopt; absent if the hardware queues the packets
		if len(options) == 0 {
			return nil
		}
		limit, err := nlbatch.Uint32(options)
		q.Full = err == nil && limit == 0
		return err
	case "netem": // struct tc_netem_qopt
		if len(options) < netemFields {
			return fmt.Errorf("read netem: options of %d bytes", len(options))
		}
		delay, _ := nlbatch.Uint32(options)
		limit, _ := nlbatch.Uint32(options[4:])
		loss, _ := nlbatch.Uint32(options[8:])
		q.Delay, q.Full, q.Loss = time.Duration(delay)*netemTick, limit == 0, float64(loss)*100/netemWhole
		return nil
	case "fq", "codel", "fq_codel":
		return nlbatch.EachAttr(options, func(typ uint16, v []byte) error {
			if typ == limits[q.Kind] {
				limit, err := nlbatch.Uint32(v)
				q.Full = err == nil && limit == 0
				return err
			}
			return nil
		})
	}
	return nil
}
