package kernel

import "fmt"

// elsewhere names where a mode keeps virtual servers, and sets and rules, if no command of IPVS, ipset or iptables can change them.
var elsewhere = map[Mode]struct{ servers, rules string }{
	IPVSWithNFTables: {"", "nftables"},
	NFTablesOnly:     {"nftables", "nftables"},
	Userspace:        {"the agent's process", "the agent's process"},
}

var (
	verbs        = map[Verb]string{Create: "add", Update: "change", Delete: "remove", Ensure: "set"}
	prepositions = map[Verb]string{Create: "to", Update: "in", Delete: "from", Ensure: "in"}
)

// In describes the operation in a mode: as the equivalent command, or in words if that command would do something else.
func (o Op) In(mode Mode) string {
	at, verb, preposition := elsewhere[mode], verbs[o.Verb], prepositions[o.Verb]
	switch obj := o.Object.(type) {
	case DummyDevice:
		if mode == Userspace {
			return fmt.Sprintf("%s %s, which leads to the agent's process", verb, Device)
		}
	case BoundAddress:
		if mode == Userspace {
			return fmt.Sprintf("%s route %s dev %s proto %d", verb, obj.Addr, Device, RouteProtocol)
		}
	case Server:
		if at.servers != "" {
			return fmt.Sprintf("%s port %s %s %s", verb, portOf(obj.Key), preposition, at.servers)
		}
	case ServerDestination:
		return o.endpointIn(at.servers, obj)
	case Set:
		if at.rules != "" {
			return fmt.Sprintf("%s set %s %s %s", verb, obj.Name, preposition, at.rules)
		}
	case Member:
		if at.rules != "" {
			return fmt.Sprintf("%s %s %s set %s in %s", verb, obj.Element, preposition, obj.Set, at.rules)
		}
	case Ruleset:
		if at.rules != "" {
			return fmt.Sprintf("%s the %s rules in %s", verb, obj.Family, at.rules)
		}
	}
	return o.String()
}

func (o Op) endpointIn(where string, d ServerDestination) string {
	if where == "" {
		return o.String()
	}
	preposition := prepositions[o.Verb]
	if o.Verb == Update {
		preposition = "of"
	}
	text := fmt.Sprintf("%s endpoint %s %s port %s in %s", verbs[o.Verb], d.Addr, preposition, portOf(d.Server), where)
	if o.Verb != Delete {
		text += fmt.Sprintf(", weight %d", d.Weight)
	}
	return text
}

func portOf(k ServerKey) string { return fmt.Sprintf("%s/%s", k.Addr, k.Protocol) }
