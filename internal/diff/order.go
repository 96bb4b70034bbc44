package diff

// phaseIndex is a position in the order of a plan (I7).
type phaseIndex int

// The order, and what a packet would see in another one.
const (
	// Without these, IPVS forwards nothing or forwards it wrongly.
	phaseSysctls phaseIndex = iota
	phaseDevice
	// A rule can only name a set that exists.
	phaseSets
	// The ledger before the virtual server: an agent killed in between leaves an entry without a server, never a server without an owner.
	// Hairpin entries too, because replies need them.
	phaseEarlyMembersIn
	// Guards drop or masquerade packets before the port opens or its destinations change.
	phaseGuardsIn
	// Guards of a port that already has the wanted endpoints only: the new rules would drop packets that are served now.
	phaseIdleGuardsOut
	// Ports that answer already, because kube-proxy or an earlier agent programmed them: the rules find them in the sets, so no packet is
	// rejected, or left unmasqueraded, in between.
	phaseAnsweringMembersIn
	// From here on, unserved ports of virtual addresses are closed and packets are masqueraded. No new virtual server may get a packet
	// before that. (An agent that captures the API server's address minutes before it can masquerade cuts the node off.)
	phaseRules
	// The seal after all entries of the ledger: if the agent is killed in between, the next one continues to take over what exists.
	phaseSeal
	phaseServers
	phaseDestinationsIn
	// A port opens when it has destinations. Opened earlier, a daemon of the host would answer.
	phaseLateMembersIn
	// The address last: from here on, packets arrive.
	phaseAddressesIn

	// And in reverse. The address first, then no more packets arrive.
	phaseAddressesOut
	// New connections are refused before the last endpoint leaves.
	phaseLateMembersOut
	phaseDestinationsOut
	phaseServersOut
	// Now all destinations are open to every client. Entries that let clients pass a guard go after it (early members). And at an address
	// that the node itself has by now, where packets keep arriving, no all-ports server is left: the node's own ports may open.
	phaseGuardsOut
	phaseEarlyMembersOut
	// Sets to which no rule refers.
	phaseSetsOut

	numPhases
)

var phaseNames = [numPhases]string{
	phaseSysctls:            "sysctls",
	phaseDevice:             "device",
	phaseSets:               "sets",
	phaseEarlyMembersIn:     "ownership and hairpin entries",
	phaseGuardsIn:           "guard entries",
	phaseIdleGuardsOut:      "idle guard entries to remove",
	phaseAnsweringMembersIn: "ports that answer already",
	phaseRules:              "rules",
	phaseSeal:               "seal of the ownership entries",
	phaseServers:            "virtual servers",
	phaseDestinationsIn:     "destinations",
	phaseLateMembersIn:      "served ports",
	phaseAddressesIn:        "addresses",
	phaseAddressesOut:       "addresses to release",
	phaseLateMembersOut:     "served ports to close",
	phaseDestinationsOut:    "destinations to remove",
	phaseServersOut:         "virtual servers to remove",
	phaseGuardsOut:          "guard entries to remove",
	phaseEarlyMembersOut:    "ownership and hairpin entries to remove",
	phaseSetsOut:            "sets to remove",
}
