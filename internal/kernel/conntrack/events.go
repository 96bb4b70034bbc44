package conntrack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

const (
	groupNew     = 1 << 0
	groupDestroy = 1 << 2

	attrCountersOriginal = 9
	attrCountersReply    = 10
	counterPackets       = 1
	counterBytes         = 2
	attrTimestamp        = 20
	timestampStart       = 1
	timestampStop        = 2

	// eventBuffer has room for some 26,000 events while the reader is busy.
	eventBuffer = 16 << 20
)

// Watch runs until ctx ends. It calls take for each new and each ended connection, and lost if events were lost because the kernel's
// buffer was full. It skips connections in zones, and protocols that Services cannot use.
func Watch(ctx context.Context, take func(kernel.FlowEvent), lost func()) error {
	sub, err := subscribe()
	if err != nil {
		return explain(err)
	}
	return watch(ctx, sub, take, lost)
}

func subscribe() (*nlbatch.Subscription, error) {
	return nlbatch.Subscribe(unix.NETLINK_NETFILTER, groupNew|groupDestroy, eventBuffer, nil)
}

func watch(ctx context.Context, sub *nlbatch.Subscription, take func(kernel.FlowEvent), lost func()) error {
	stop := context.AfterFunc(ctx, func() { _ = sub.Close() })
	defer func() {
		if stop() {
			_ = sub.Close()
		}
	}()
	for {
		messages, err := sub.Receive()
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, unix.ENOBUFS):
			lost()
		case err != nil:
			return fmt.Errorf("receive events of connection tracking: %w", err)
		}
		for _, m := range messages {
			if e, relevant := readEvent(m.Header.Type, m.Data); relevant {
				e.At = time.Now()
				take(e)
			}
		}
	}
}

// relevant is false for connections that cannot belong to Services, such as ICMP.
func readEvent(typ uint16, payload []byte) (e kernel.FlowEvent, relevant bool) {
	e.Ended = typ&0xff == cmdDelete
	entry, err := readEntry(payload)
	if err != nil || entry.zoned {
		return e, false
	}
	if protocol, err := protocolOf(entry.original); err != nil || protocol != inet.TCP && protocol != inet.UDP && protocol != inet.SCTP {
		return e, false
	}
	if e.Flow, err = entry.flow(); err != nil {
		return e, false
	}
	if status, err := nlbatch.BigUint32(entry.status); err == nil {
		e.Answered = status&statusSeenReply != 0
	}
	return e, readCounts(&e, payload[headerLen:]) == nil
}

func readCounts(e *kernel.FlowEvent, attrs []byte) error {
	numbers := map[[2]uint16]uint64{} // by attribute and nested attribute
	err := nlbatch.EachAttr(attrs, func(typ uint16, v []byte) error {
		if typ != attrCountersOriginal && typ != attrCountersReply && typ != attrTimestamp {
			return nil
		}
		return nlbatch.EachAttr(v, func(inner uint16, v []byte) error {
			if len(v) == 8 {
				numbers[[2]uint16{typ, inner}] = binary.BigEndian.Uint64(v)
			}
			return nil
		})
	})
	e.BytesIn, e.Counted = numbers[[2]uint16{attrCountersOriginal, counterBytes}]
	e.BytesOut = numbers[[2]uint16{attrCountersReply, counterBytes}]
	e.Packets = numbers[[2]uint16{attrCountersOriginal, counterPackets}] + numbers[[2]uint16{attrCountersReply, counterPackets}]
	began, ended := numbers[[2]uint16{attrTimestamp, timestampStart}], numbers[[2]uint16{attrTimestamp, timestampStop}]
	if ended > began && began > 0 {
		e.Lasted = time.Duration(ended - began)
	}
	return err
}
