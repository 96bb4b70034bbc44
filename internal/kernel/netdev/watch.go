package netdev

import (
	"context"
	"encoding/binary"
	"errors"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

const resubscribeDelay = time.Second

// Watch reports changes until ctx ends. It calls disturbed when another program may have changed kube-ipvs0 or its
// addresses, and moved when the addresses of other interfaces may have changed, or a route has a new gateway. It
// calls both functions when it starts to listen, and when events were lost. All calls come from one goroutine and
// must not block.
//
// It listens in the network namespace of the calling thread.
func (b *Backend) Watch(ctx context.Context, disturbed, moved func()) {
	notify := func(c changes) {
		if c&deviceChanged != 0 {
			disturbed()
		}
		if c&nodeChanged != 0 {
			moved()
		}
	}
	for ctx.Err() == nil {
		if sub, err := subscribe(); err == nil {
			notify(everything)
			b.listen(ctx, sub, notify)
		}
		pause(ctx, resubscribeDelay)
	}
}

// everything contains every change that a lost or unreadable event may have reported.
const everything = deviceChanged | nodeChanged

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

func (b *Backend) listen(ctx context.Context, sub *nlbatch.Subscription, notify func(changes)) {
	stop := context.AfterFunc(ctx, func() { _ = sub.Close() })
	defer func() {
		if stop() {
			_ = sub.Close()
		}
	}()
	for {
		events, err := sub.Receive()
		switch {
		case errors.Is(err, unix.ENOBUFS): // events were lost; the subscription is still valid
			notify(everything)
		case err != nil:
			return
		default:
			notify(b.changesOf(events))
			if b.handled != nil {
				b.handled(events)
			}
		}
	}
}

func (b *Backend) changesOf(events []syscall.NetlinkMessage) (all changes) {
	for _, e := range events {
		all |= b.changeOf(e)
	}
	return all
}

func (b *Backend) changeOf(e syscall.NetlinkMessage) changes {
	switch e.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		index, name, err := parseLink(e.Data)
		if err != nil {
			return everything
		}
		return b.known.link(index, name, e.Header.Type == unix.RTM_NEWLINK)
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		a, err := parseAddress(e.Data)
		if err != nil {
			return everything
		}
		return b.known.address(a, e.Header.Type == unix.RTM_NEWADDR)
	case unix.RTM_NEWNEXTHOP:
		hops, err := parseNexthop(e.Data)
		if err != nil {
			return everything
		}
		return b.known.route(hops)
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		present := e.Header.Type == unix.RTM_NEWROUTE
		r, err := parseListedRoute(e.Data)
		switch {
		case err != nil:
			return everything
		case r.ours():
			return b.known.localRoute(r, present)
		case !present:
			return b.deletedRoute(r)
		}
		hops, err := parseGateways(e.Data)
		if err != nil {
			return everything
		}
		return b.known.route(hops)
	}
	return 0
}

func (b *Backend) deletedRoute(r listedRoute) changes {
	if b.routed != nil && r.unicast && r.protocol == kernel.RouteProtocol && r.toHost() && b.routed(r.to) {
		return deviceChanged
	}
	return 0
}

func parseLink(b []byte) (index int, name string, err error) {
	if len(b) < unix.SizeofIfInfomsg {
		return 0, "", errors.New("read link: short message")
	}
	index = int(int32(binary.NativeEndian.Uint32(b[4:])))
	err = nlbatch.EachAttr(b[unix.SizeofIfInfomsg:], func(typ uint16, v []byte) error {
		if typ == unix.IFLA_IFNAME {
			name = nlbatch.String(v)
		}
		return nil
	})
	return index, name, err
}
