package kerneltest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// EndFlows implements Kernel.
func (f *Fake) EndFlows(ctx context.Context, protocols []inet.Protocol, stale func(kernel.Flow) bool) (int, error) {
	f.mu.Lock()
	flows := slices.Clone(f.flows)
	f.counts.FlowWalks++
	fault := f.faults.walk()
	f.mu.Unlock()
	if err := errors.Join(ctx.Err(), fault.err); err != nil && !fault.lost {
		return 0, fmt.Errorf("end flows: %w", err)
	}
	// Do not hold the lock, because stale may read the kernel.
	ended := map[kernel.Flow]bool{}
	for _, flow := range flows {
		answered := flow.Key.Protocol == inet.TCP && !flow.Unanswered
		if slices.Contains(protocols, flow.Key.Protocol) && !answered && stale(flow) {
			ended[flow] = true
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.flows = slices.DeleteFunc(f.flows, func(flow kernel.Flow) bool { return ended[flow] })
	if fault.err != nil {
		return len(ended), fmt.Errorf("end flows: %w", fault.err)
	}
	return len(ended), nil
}

// AddFlow implements Admin.
func (f *Fake) AddFlow(flow kernel.Flow) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if slices.Contains(f.flows, flow) {
		return fmt.Errorf("flow %+v: %w", flow, kernel.ErrExists)
	}
	f.flows = append(f.flows, flow)
	return nil
}

// Flows returns the tracked connections, oldest first.
func (f *Fake) Flows() []kernel.Flow {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.flows)
}

// AddFlow implements Admin.
func (Commands) AddFlow(flow kernel.Flow) error {
	family := netlink.InetFamily(netlink.FAMILY_V4)
	if flow.Key.Family() == inet.IPv6 {
		family = netlink.FAMILY_V6
	}
	direction := func(from, to netip.AddrPort) netlink.IPTuple {
		return netlink.IPTuple{
			Protocol: uint8(flow.Key.Protocol),
			SrcIP:    from.Addr().AsSlice(), SrcPort: from.Port(),
			DstIP: to.Addr().AsSlice(), DstPort: to.Port(),
		}
	}
	source := flow.Client
	if flow.Masqueraded {
		source = netip.AddrPortFrom(source.Addr(), source.Port()+1)
	}
	entry := &netlink.ConntrackFlow{
		FamilyType: uint8(family),
		Forward:    direction(flow.Client, flow.Key.Addr),
		Reverse:    direction(flow.Endpoint, source),
		TimeOut:    uint32(time.Hour / time.Second),
	}
	if flow.Key.Protocol == inet.TCP {
		entry.ProtoInfo = &netlink.ProtoInfoTCP{State: tcpStates[flow.Unanswered]}
	}
	if err := netlink.ConntrackCreate(netlink.ConntrackTable, family, entry); err != nil {
		return fmt.Errorf("add flow %+v: %w", flow, err)
	}
	return nil
}

// tcpStates maps Flow.Unanswered to the kernel's state of a tracked TCP connection.
var tcpStates = map[bool]uint8{true: 1 /* SYN_SENT */, false: 3 /* ESTABLISHED */}
