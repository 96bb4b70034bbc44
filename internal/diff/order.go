package diff

// phaseIndex is a place in the order of a plan (I7).
type phaseIndex int

// The order, and what a packet would see if it were another.
const (
	// Without these IPVS forwards nothing, or forwards it wrongly.
	phaseSysctls phaseIndex = iota
	phaseDevice
	// A rule can only name a set that exists.
	phaseSets
	// The ledger before the server: killed in between, we find an entry without a server, never a server without an owner.
	// What a server's answers need (hairpin) before the server, too.
	phaseEarlyMembersIn
	// Who is to be kept out is, and who is to be masqueraded, before the port opens or its destinations change.
	phaseGuardsIn
	// What stood before a port that answers as it shall: packets would be refused that are served now.
	phaseIdleGuardsOut
	// The ports that answer already, because kube-proxy or we ourselves were here before: the rules find them in the sets, and no
	// packet is refused, or not masqueraded, in between.
	phaseAnsweringMembersIn
	// From here on the ports of virtual addresses are closed, and what is to be masqueraded is: no new virtual server may take
	// a packet before that. (An agent that captures the API server's address minutes before it can masquerade cuts the node off.)
	phaseRules
	// The seal behind all entries of the ledger: killed in between, the next start goes on taking over what is there.
	phaseSeal
	phaseServers
	phaseDestinationsIn
	// A port opens when something answers behind it. Opened earlier, a daemon of the host would answer.
	phaseLateMembersIn
	// The address last: from now on packets arrive.
	phaseAddressesIn

	// And back: the address first, then no packet comes any more.
	phaseAddressesOut
	// New connections are refused before the last endpoint leaves.
	phaseLateMembersOut
	phaseDestinationsOut
	phaseServersOut
	// Now the destinations are those that everybody may reach; who may pass a guard is forgotten after it. And at an address that is the
	// node's own by now, where packets go on arriving, no virtual server takes every port any more: the node's may open.
	phaseGuardsOut
	phaseEarlyMembersOut
	// Sets that no rule names any more.
	phaseSetsOut

	numPhases
)

var phaseNames = [numPhases]string{
	phaseSysctls:            "sysctls",
	phaseDevice:             "device",
	phaseSets:               "sets",
	phaseEarlyMembersIn:     "ownership and hairpin entries",
	phaseGuardsIn:           "entries that stand before ports",
	phaseIdleGuardsOut:      "entries that stood before ports that answer, to remove",
	phaseAnsweringMembersIn: "ports that answer already",
	phaseRules:              "rules",
	phaseSeal:               "completeness of the ownership entries",
	phaseServers:            "virtual servers",
	phaseDestinationsIn:     "destinations",
	phaseLateMembersIn:      "served ports",
	phaseAddressesIn:        "addresses",
	phaseAddressesOut:       "addresses to release",
	phaseLateMembersOut:     "served ports to close",
	phaseDestinationsOut:    "destinations to remove",
	phaseServersOut:         "virtual servers to remove",
	phaseGuardsOut:          "entries that stand before ports to remove",
	phaseEarlyMembersOut:    "ownership and hairpin entries to remove",
	phaseSetsOut:            "sets to remove",
}
