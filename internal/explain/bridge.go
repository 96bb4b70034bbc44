package explain

import (
	"fmt"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// bypass follows the reply of an endpoint on the client's bridge. If netfilter does not process packets between the
// bridge's ports, IPVS cannot restore the Service's address in the reply, and the client drops the reply. bypass
// reports whether all clients are affected.
func (e *explaining) bypass(w *walk, p *packet, d kernel.ObservedDestination) (everyone bool) {
	masqueraded := w.masquerades != "" && (p.from.IsValid() || !e.someExempt())
	if p.sent || masqueraded {
		return false // the reply passes through the node
	}
	i := slices.IndexFunc(e.k.Bridges, func(b kernel.Bridge) bool { return b.Name == p.out && !b.Filtered[p.family] })
	if i < 0 || p.in != p.out && (p.in != "" || p.from.IsValid()) {
		return false
	}
	everyone = p.in == p.out && len(w.depends) == 0
	client, verdict := "a client", Depends
	if everyone {
		client, verdict = "the client", Stops
	}
	says := fmt.Sprintf("%s on the bridge %s gets no reply from endpoint %s, which is on the same bridge: netfilter does not process packets "+
		"between the bridge's ports, so the reply keeps the endpoint's own address; run on the host: %s",
		client, p.out, d.Addr, kernel.FilterBridges(p.family))
	e.step("reply", "bridge "+p.out, says, verdict)
	e.reason(map[bool]Verdict{true: Partly, false: Depends}[everyone], nil, "%s", says)
	return everyone
}
