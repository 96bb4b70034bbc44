package conntrack

import (
	"context"
	"errors"
	"fmt"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// The kernel's names of states: include/uapi/linux/netfilter/nf_conntrack_{tcp,sctp}.h. UDP has no states.
var stateNames = map[inet.Protocol]struct {
	info  uint16
	names []string
}{
	inet.TCP: {infoTCP, []string{"NONE", "SYN_SENT", "SYN_RECV", "ESTABLISHED", "FIN_WAIT", "CLOSE_WAIT", "LAST_ACK", "TIME_WAIT", "CLOSE", "SYN_SENT2"}},
	inet.SCTP: {infoSCTP, []string{"NONE", "CLOSED", "COOKIE_WAIT", "COOKIE_ECHOED", "ESTABLISHED", "SHUTDOWN_SENT", "SHUTDOWN_RECD", "SHUTDOWN_ACK_SENT",
		"HEARTBEAT_SENT", "HEARTBEAT_ACKED"}},
	inet.UDP: {},
}

// The states of connections whose protocol has none.
const (
	unreplied = "UNREPLIED"
	replied   = "REPLIED"
)

// Each visits the tracked connections of all protocols that Services can use, and keeps none. It skips connections in zones. It may miss or
// repeat connections if the table changes meanwhile.
func (b *Backend) Each(ctx context.Context, visit func(kernel.Connection)) error {
	var unread error
	for _, family := range inet.Families {
		err := b.table.Walk(ctx, request(cmdGet, family, nil), func(payload []byte) error {
			c, relevant, err := readConnection(payload)
			if unread = firstOf(unread, err); relevant && err == nil {
				visit(c)
			}
			return nil
		})
		if err != nil && !errors.Is(err, nlbatch.ErrDumpInterrupted) {
			return fmt.Errorf("list tracked %s connections: %w", family, explain(err))
		}
	}
	if unread != nil {
		return fmt.Errorf("read a connection: %w", unread)
	}
	return nil
}

// relevant is false for connections that cannot belong to Services.
func readConnection(payload []byte) (c kernel.Connection, relevant bool, err error) {
	e, err := readEntry(payload)
	if err != nil || e.zoned {
		return c, false, err
	}
	protocol, err := protocolOf(e.original)
	if _, relevant = stateNames[protocol]; err != nil || !relevant {
		return c, false, err
	}
	flow, err := e.flow()
	if err != nil {
		return c, false, err
	}
	c = kernel.Connection{Protocol: protocol.String(), Client: flow.Client, Virtual: flow.Key.Addr, Destination: flow.Endpoint, State: e.state(protocol)}
	if expires, err := nlbatch.BigUint32(e.timeout); err == nil { // the kernel omits the time of some connections
		c.Expires = uint64(expires)
	}
	return c, true, nil
}

func (e entry) state(p inet.Protocol) string {
	state := unreplied
	if status, err := nlbatch.BigUint32(e.status); err == nil && status&statusSeenReply != 0 {
		state = replied
	}
	named := stateNames[p]
	_ = eachOf(e.info, named.info, func(typ uint16, v []byte) error {
		if typ == infoState && len(v) == 1 && int(v[0]) < len(named.names) {
			state = named.names[v[0]]
		}
		return nil
	})
	return state
}
