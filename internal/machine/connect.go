package machine

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/doctor"
)

const connectPatience = time.Second

// connect opens real connections along some of the paths and to endpoints on this node. At the same time, it sends ARP requests, and test packets
// to other nodes.
func (m *Machine) connect(ctx context.Context, facts *doctor.Facts) {
	facts.Endpoints = doctor.EndpointsToConnect(facts.View, facts.Walks)
	var done sync.WaitGroup
	open := func(addr netip.AddrPort, failure *string) {
		done.Go(func() {
			if err := m.Connect(ctx, addr); err != nil {
				*failure = err.Error()
			}
		})
	}
	for _, i := range doctor.ToConnect(facts.Walks) {
		facts.Walks[i].Connected = true
		open(facts.Walks[i].To.Addr, &facts.Walks[i].Failure)
	}
	for i := range facts.Endpoints {
		open(facts.Endpoints[i].Address, &facts.Endpoints[i].Failure)
	}
	facts.Echoed = facts.Echoes()
	for i := range facts.Echoed {
		done.Go(func() { m.Measure(ctx, &facts.Echoed[i]) })
	}
	facts.Probed = facts.ToProbe()
	failures := make([]error, len(facts.Probed))
	for i := range facts.Probed {
		done.Go(func() { failures[i] = m.Probe(&facts.Probed[i]) })
	}
	done.Wait()
	if err := cmp.Or(failures...); err != nil {
		facts.Unread = append(facts.Unread, fmt.Sprintf("duplicate addresses: %v", err))
	}
}

func connectTo(ctx context.Context, addr netip.AddrPort) error {
	dialer := net.Dialer{Timeout: connectPatience}
	c, err := dialer.DialContext(ctx, "tcp", addr.String())
	if err != nil {
		return err
	}
	return c.Close()
}
