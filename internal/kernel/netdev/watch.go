package netdev

import (
	"context"
	"encoding/binary"
	"errors"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// resubscribeDelay is the pause after a subscription that failed or broke.
const resubscribeDelay = time.Second

// Watch calls disturbed whenever kube-ipvs0 or its addresses may have been changed by somebody else, and moved whenever the
// addresses of other interfaces may have changed, until ctx ends. It calls both when it starts to listen, and when events were
// lost. The calls come from one goroutine and in any number; they must not block.
//
// It listens in the network namespace of the calling thread.
func (b *Backend) Watch(ctx context.Context, disturbed, moved func()) {
	notify := func(n news) {
		if n&deviceNews != 0 {
			disturbed()
		}
		if n&nodeNews != 0 {
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

// everything may have changed: that is what an event means which was lost or cannot be read. Looking is the safe answer.
const everything = deviceNews | nodeNews

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// listen handles events until the subscription breaks or ctx ends, and closes the subscription.
func (b *Backend) listen(ctx context.Context, sub *subscription, notify func(news)) {
	stop := context.AfterFunc(ctx, sub.close)
	defer func() {
		if stop() {
			sub.close()
		}
	}()
	for {
		events, err := sub.receive()
		switch {
		case errors.Is(err, unix.ENOBUFS): // events were lost; the subscription goes on
			notify(everything)
		case err != nil:
			return
		default:
			notify(b.newsOf(events))
		}
	}
}

func (b *Backend) newsOf(events []syscall.NetlinkMessage) (all news) {
	for _, e := range events {
		all |= b.news(e)
	}
	return all
}

// news judges one event.
func (b *Backend) news(e syscall.NetlinkMessage) news {
	switch e.Header.Type {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		index, name, err := parseLink(e.Data)
		if err != nil {
			return everything
		}
		return b.belief.linkNews(index, name, e.Header.Type == unix.RTM_NEWLINK)
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		a, err := parseAddress(e.Data)
		if err != nil {
			return everything
		}
		return b.belief.addressNews(a, e.Header.Type == unix.RTM_NEWADDR)
	}
	return 0
}

// parseLink reads the index and name of the payload of an RTM_NEWLINK or RTM_DELLINK.
func parseLink(b []byte) (index int, name string, err error) {
	if len(b) < unix.SizeofIfInfomsg {
		return 0, "", errors.New("read link: message is cut short")
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
