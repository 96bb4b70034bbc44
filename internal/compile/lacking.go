package compile

import (
	"strconv"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// lacking says what happens instead, for each annotation that has no effect on a data plane. resume-connections depends on max-connections;
// proxy-protocol depends on the port's protocol (lackingOf).
var lacking = map[kernel.Mode]map[string]string{
	kernel.NFTablesOnly: {
		"scheduler":       "each connection gets an endpoint at random, by weight",
		"max-connections": "connections to an endpoint are not limited",
		"one-packet":      "all datagrams of a client socket go to the same endpoint",
	},
	kernel.Userspace: {
		"scheduler":       "endpoints take turns, by weight",
		"max-connections": "connections to an endpoint are not limited",
		"one-packet":      "all datagrams of a client socket go to the same endpoint",
		"slow-start":      "a new endpoint has its full weight immediately",
		"affinity-ports":  "each port has its own affinity",
	},
}

// lacks reports whether an annotation has no effect on the data plane.
func lacks(mode kernel.Mode, annotation string) bool {
	_, without := lacking[mode][annotation]
	return without
}

// whyLacking is the beginning of the reason and the remedy of a Problem.
var whyLacking = map[kernel.Mode]struct{ why, remedy string }{
	kernel.NFTablesOnly: {
		"only IPVS can do this, and nftables balances on this node: ",
		"load the module ip_vs on the node; with --data-plane=nftables, also remove this setting and restart the agent",
	},
	kernel.Userspace: {"the agent's process, which balances on this node, cannot do this: ", "use --data-plane=ipvs"},
}

// lackingOf adds a Problem for each annotation that has no effect on this data plane.
func lackingOf(mode kernel.Mode, b model.Balancing, port model.ServicePort, note func(annotation, value, reason, remedy string)) {
	for _, asked := range []struct {
		annotation, value string
		set               bool
	}{
		{"scheduler", b.Scheduler, b.Scheduler != ""},
		{"max-connections", strconv.FormatUint(uint64(b.MaxConnections), 10), b.MaxConnections > 0},
		{"slow-start", b.SlowStart.String(), b.SlowStart > 0},
		{"affinity-ports", "all", b.AllPorts},
		{"one-packet", "true", b.OnePacket && port.Protocol == inet.UDP},
	} {
		if asked.set && lacks(mode, asked.annotation) {
			of := whyLacking[mode]
			note(asked.annotation, asked.value, of.why+lacking[mode][asked.annotation], of.remedy)
		}
	}
	if b.ProxyProtocol == 0 {
		return
	}
	switch inUserspace := mode == kernel.Userspace; {
	case inUserspace && port.Protocol == inet.UDP:
		note("proxy-protocol", proxyVersion(b), "the header is sent only over TCP: datagrams reach endpoints without it",
			"if the endpoints require it over UDP, connect to them directly; to remove this message, use a Service of its own for the UDP ports")
	case !inUserspace && port.Protocol == inet.TCP:
		note("proxy-protocol", proxyVersion(b), "the kernel forwards connections on this node, and cannot add the header. Endpoints that require it refuse them",
			"remove the annotation, and configure the endpoints to expect no header; with externalTrafficPolicy: Local, they see the client's address")
	}
}
