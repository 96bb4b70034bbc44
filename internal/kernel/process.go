package kernel

import "fmt"

// In describes the operation in a mode. In user space, it is not a command: ports and sets are in the agent's process, and
// an address is a route.
func (o Op) In(mode Mode) string {
	if mode != Userspace {
		return o.String()
	}
	verb := map[Verb]string{Create: "add", Update: "change", Delete: "remove", Ensure: "set"}[o.Verb]
	switch obj := o.Object.(type) {
	case DummyDevice:
		return fmt.Sprintf("%s %s, which leads to the agent's process", verb, Device)
	case BoundAddress:
		return fmt.Sprintf("%s route %s dev %s proto %d", verb, obj.Addr, Device, RouteProtocol)
	case Server:
		return fmt.Sprintf("%s port %s of the process", verb, portOf(obj.Key))
	case ServerDestination:
		text := fmt.Sprintf("%s endpoint %s of port %s", verb, obj.Addr, portOf(obj.Server))
		if o.Verb != Delete {
			text += fmt.Sprintf(", weight %d", obj.Weight)
		}
		return text
	case Set:
		return fmt.Sprintf("%s set %s in the process", verb, obj.Name)
	case Member:
		return fmt.Sprintf("%s %s in set %s of the process", verb, obj.Element, obj.Set)
	}
	return o.String()
}

func portOf(k ServerKey) string { return fmt.Sprintf("%s/%s", k.Addr, k.Protocol) }
