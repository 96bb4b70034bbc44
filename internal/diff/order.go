package diff

type phaseIndex int

// The phases in order, each with the reason for its position.
const (
	// Without these settings, IPVS forwards packets wrongly or not at all.
	phaseSysctls phaseIndex = iota
	phaseDevice
	// A rule can refer only to an existing set.
	phaseSets
	// The ledger comes before the virtual server: an agent killed in between leaves an owner record without a server, never a server without
	// an owner. Hairpin entries also come first, because replies need them.
	phaseEarlyMembersIn
	// Guards drop or masquerade packets before the port opens or its destinations change.
	phaseGuardsIn
	// If a port already has only the wanted endpoints, its unwanted guards are removed early: otherwise the new rules would drop packets
	// that are served now.
	phaseIdleGuardsOut
	// These entries belong to ports that already answer, because kube-proxy or an earlier agent programmed them. They come before the
	// rules, so that no packet is rejected or left unmasqueraded.
	phaseAnsweringMembersIn
	// From here on, unserved ports of virtual addresses are closed and packets are masqueraded. No new virtual server may receive a packet
	// before that. An agent that captures the API server's address minutes before it masquerades would cut the node off.
	phaseRules
	// The seal comes after all entries of the ledger: if the agent is killed in between, the next agent continues the adoption.
	phaseSeal
	phaseServers
	phaseDestinationsIn
	// A port opens only after it has destinations. Otherwise, a daemon on the host would answer.
	phaseLateMembersIn
	// The address comes last: from here on, packets arrive.
	phaseAddressesIn

	// Removal has the reverse order. The address comes first, so that no more packets arrive.
	phaseAddressesOut
	// New connections are refused before the last endpoint is removed.
	phaseLateMembersOut
	phaseDestinationsOut
	phaseServersOut
	// Now all destinations are open to every client. Entries that let clients pass a guard (early members) are removed after the guard.
	// Packets keep arriving at an address that is now the node's own. No all-ports server remains there, so the node's ports may open.
	phaseGuardsOut
	phaseEarlyMembersOut
	// No rule uses these sets anymore.
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
	phaseAnsweringMembersIn: "ports already served",
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
