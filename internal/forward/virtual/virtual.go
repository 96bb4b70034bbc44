// Package virtual turns virtual servers into listeners of a forwarder: where they listen, and which endpoints they have.
//
// May import: forward and kernel.
package virtual

import (
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/forward"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// Listen returns the listener of a virtual server at its own address.
func Listen(key kernel.ServerKey) forward.Listen {
	return forward.Listen{Protocol: forward.Protocol(key.Protocol.String()), At: key.Addr}
}

// Target returns how a virtual server forwards its clients to its destinations.
func Target(s kernel.Server, destinations []kernel.Destination) forward.Target {
	t := forward.Target{Endpoints: make([]forward.Endpoint, len(destinations))}
	for i, d := range destinations {
		t.Endpoints[i] = forward.Endpoint{Addr: d.Addr, Weight: d.Weight}
	}
	switch {
	case s.Flags&kernel.FlagProxyV1 != 0:
		t.Header = forward.ProxyV1
	case s.Flags&kernel.FlagProxyV2 != 0:
		t.Header = forward.ProxyV2
	}
	if s.Flags&kernel.FlagPersistent != 0 {
		t.Affinity, t.AffinityBits = time.Duration(s.Timeout)*time.Second, int(s.MaskBits)
	}
	return t
}
