package contest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// Parts of the kernel.
const (
	Servers = "servers"
	Sets    = "sets"
	Rules   = "rules"
	Sysctl  = "sysctl"
	Device  = "device"
)

// Kinds of findings.
const (
	Missing    = "missing"
	Unexpected = "unexpected"
	Changed    = "changed"
	Emptied    = "emptied"
)

// Kinds are the possible kinds of findings in each part.
var Kinds = map[string][]string{
	Servers: {Missing, Changed, Unexpected},
	Sets:    {Missing, Changed, Unexpected},
	Rules:   {Missing, Changed, Emptied},
	Sysctl:  {Changed},
	Device:  {Missing, Unexpected},
}

// Finding describes changes to one chain or sysctl, or all changes of one kind to a set, to virtual servers or to
// addresses. The number of findings does not depend on the number of Services.
type Finding struct {
	// Object names the object that another program may keep changing. Several findings can have the same object.
	Object     string
	Part, Kind string
	What       string
	Count      int
	// KubeProxy is true for a chain if kube-proxy has written any chain, because kube-proxy writes all its chains
	// together.
	KubeProxy bool
}

func (f Finding) String() string {
	if f.KubeProxy {
		return f.What + " by kube-proxy"
	}
	return f.What
}

// Find describes an audit's repairs and sorts the findings. rules and sysctls contain the state that the audit read.
func Find(repairs []kernel.Op, rules map[inet.Family]kernel.RulesView, sysctls map[string]string) []Finding {
	type group struct{ object, kind string }
	groups := map[group][]kernel.Op{}
	var found []Finding
	for _, op := range repairs {
		if wanted, ok := op.Object.(kernel.Ruleset); ok {
			found = append(found, findRules(wanted, rules[wanted.Family])...)
			continue
		}
		g := group{nameOf(op.Object), kindOf(op)}
		groups[g] = append(groups[g], op)
	}
	for g, ops := range groups {
		found = append(found, Finding{
			Object: g.object, Part: partOf(ops[0]), Kind: g.kind, Count: len(ops), What: describe(ops, sysctls),
		})
	}
	slices.SortFunc(found, func(a, b Finding) int { return cmp.Or(cmp.Compare(a.Object, b.Object), cmp.Compare(a.What, b.What)) })
	return found
}

func nameOf(object kernel.Object) string {
	switch o := object.(type) {
	case kernel.Server, kernel.ServerDestination:
		return "virtual servers"
	case kernel.BoundAddress:
		if o.Binding == kernel.Routed {
			return "local routes to " + kernel.Device
		}
		return "addresses of " + kernel.Device
	case kernel.DummyDevice:
		return "device " + kernel.Device
	case kernel.Set:
		return "set " + o.Name
	case kernel.Member:
		return "set " + o.Set
	case kernel.SysctlSetting:
		return "sysctl " + o.Name
	case kernel.Timeouts:
		return "IPVS timeouts"
	}
	return object.String()
}

func partOf(op kernel.Op) string {
	switch op.KindOf() {
	case kernel.KindSet, kernel.KindMember:
		return Sets
	case kernel.KindSysctl:
		return Sysctl
	case kernel.KindDevice, kernel.KindAddress:
		return Device
	}
	return Servers
}

func kindOf(op kernel.Op) string {
	if a, is := op.Object.(kernel.BoundAddress); is && a.Moved {
		return Changed
	}
	switch op.Verb {
	case kernel.Create:
		return Missing
	case kernel.Delete:
		return Unexpected
	}
	return Changed
}

func describe(ops []kernel.Op, sysctls map[string]string) string {
	switch o := ops[0].Object.(type) {
	case kernel.SysctlSetting:
		return fmt.Sprintf("sysctl %s is %s, not %s", o.Name, sysctls[o.Name], o.Value)
	case kernel.Timeouts:
		return fmt.Sprintf("the timeouts of IPVS are not %s", o)
	case kernel.DummyDevice:
		return kernel.Device + " " + fates[kindOf(ops[0])]
	case kernel.Member:
		return describeMembers(ops)
	case kernel.Set:
		return fmt.Sprintf("set %s %s", o.Name, fates[kindOf(ops[0])])
	case kernel.BoundAddress:
		if o.Binding == kernel.Routed {
			return counted(kernel.Device+": ", "local route", "s", ops)
		}
		return counted(kernel.Device+": ", "address", "es", ops)
	}
	if slices.ContainsFunc(ops, isServer) { // changes to the server's destinations are a consequence
		ops = slices.DeleteFunc(slices.Clone(ops), func(op kernel.Op) bool { return !isServer(op) })
		return counted("", "virtual server", "s", ops)
	}
	return counted("", "destination", "s", ops)
}

func isServer(op kernel.Op) bool { return op.KindOf() == kernel.KindServer }

var (
	fates     = map[string]string{Missing: "is missing", Changed: "was changed", Unexpected: "was added"}
	manyFates = map[string]string{Missing: "are missing", Changed: "were changed", Unexpected: "were added"}
)

func counted(where, noun, plural string, ops []kernel.Op) string {
	first, kind := short(ops[0].Object), kindOf(ops[0])
	if len(ops) == 1 {
		return fmt.Sprintf("%s%s %s %s", where, noun, first, fates[kind])
	}
	return fmt.Sprintf("%s%d %s%s %s, the first %s", where, len(ops), noun, plural, manyFates[kind], first)
}

func short(object kernel.Object) string {
	switch o := object.(type) {
	case kernel.Server:
		return shortKey(o.Key)
	case kernel.ServerDestination:
		return fmt.Sprintf("%s of virtual server %s", o.Addr, shortKey(o.Server))
	case kernel.BoundAddress:
		return o.Addr.String()
	}
	return object.String()
}

func shortKey(key kernel.ServerKey) string {
	return fmt.Sprintf("%s/%s", key.Addr, strings.ToUpper(key.Protocol.String()))
}

func describeMembers(ops []kernel.Op) string {
	first, noun := ops[0].Object.(kernel.Member), "entry"
	if len(ops) > 1 {
		noun = "entries"
	}
	which := map[string]string{Missing: "missing", Unexpected: "added by another program"}[kindOf(ops[0])]
	return fmt.Sprintf("set %s: %d %s %s, the first %s", first.Set, len(ops), noun, which, first.Element)
}
