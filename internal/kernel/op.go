package kernel

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
)

// Verb is what an operation does to its object.
type Verb uint8

// The verbs. Ensure creates or corrects an object.
const (
	Create Verb = iota + 1
	Update
	Delete
	Ensure
)

// Op is one change to one kernel object.
type Op struct {
	Verb   Verb
	Object Object
}

// Object is one of SysctlSetting, Timeouts, DummyDevice, BoundAddress, Set, Member, Ruleset, OldRules, Leftover, Server,
// ServerDestination.
type Object interface {
	fmt.Stringer
	kind() Kind
}

// Kind identifies an object's backend.
type Kind uint8

// The kinds of kernel object.
const (
	KindSysctl Kind = iota + 1
	KindDevice
	KindAddress
	KindSet
	KindMember
	KindRules
	KindServer
	KindDestination
	KindTimeouts
)

// KindOf returns the kind of the operation's object.
func (o Op) KindOf() Kind { return o.Object.kind() }

// SysctlSetting is a sysctl and the value that it should have. Verb: Ensure.
type SysctlSetting struct {
	Name, Value string
	// Optional is true if the agent skips the setting when the kernel lacks it or does not let the agent change it.
	Optional bool
}

// Dotted returns the name as sysctl prints it. A name that contains an interface (eth0.5) keeps its slashes.
func (s SysctlSetting) Dotted() string {
	if strings.Contains(s.Name, ".") {
		return s.Name
	}
	return strings.ReplaceAll(s.Name, "/", ".")
}

// Keep is the last part of a remedy for an optional sysctl that cannot be set.
func (s SysctlSetting) Keep() string {
	how := "set 0 in the section conntrack of the agent's configuration (conntrack.maxPerCore for nf_conntrack_max)"
	if strings.HasPrefix(s.Name, "net/ipv4/vs/") {
		how = "set ipvs.trafficCounters to true"
	}
	return "keep the kernel's value: " + how
}

// DummyDevice is kube-ipvs0. Verbs: Create, Delete.
type DummyDevice struct{}

// ServerDestination is a destination and the key of its virtual server. Verbs: Create, Update, Delete.
type ServerDestination struct {
	Server ServerKey
	Destination
}

func (SysctlSetting) kind() Kind     { return KindSysctl }
func (DummyDevice) kind() Kind       { return KindDevice }
func (Set) kind() Kind               { return KindSet }
func (Member) kind() Kind            { return KindMember }
func (Ruleset) kind() Kind           { return KindRules }
func (OldRules) kind() Kind          { return KindRules }
func (Server) kind() Kind            { return KindServer }
func (ServerDestination) kind() Kind { return KindDestination }
func (Timeouts) kind() Kind          { return KindTimeouts }

func (s SysctlSetting) String() string     { return s.Name + "=" + s.Value }
func (DummyDevice) String() string         { return Device }
func (r Ruleset) String() string           { return fmt.Sprintf("%s chains", r.Family) }
func (d ServerDestination) String() string { return d.Server.String() + " " + d.Destination.String() }

var commands = map[Kind]map[Verb]string{
	KindSysctl:      {Ensure: "sysctl -w"},
	KindDevice:      {Create: "ip link add", Delete: "ip link del"},
	KindSet:         {Create: "ipset create", Update: "ipset replace", Delete: "ipset destroy"},
	KindMember:      {Create: "ipset add", Delete: "ipset del"},
	KindRules:       {Ensure: "iptables-restore", Delete: "iptables -X"},
	KindServer:      {Create: "ipvsadm -A", Update: "ipvsadm -E", Delete: "ipvsadm -D"},
	KindDestination: {Create: "ipvsadm -a", Update: "ipvsadm -e", Delete: "ipvsadm -d"},
	KindTimeouts:    {Ensure: "ipvsadm --set"},
}

// String prints the operation as the equivalent command.
func (o Op) String() string {
	text := commands[o.KindOf()][o.Verb]
	switch obj := o.Object.(type) {
	case Leftover:
		return obj.removal()
	case BoundAddress:
		return obj.command(o.Verb)
	case DummyDevice:
		text += " " + obj.String()
		if o.Verb == Create {
			text += " type dummy"
		}
		return text
	case Server:
		if o.Verb == Delete {
			return text + " " + obj.Key.String()
		}
	case ServerDestination:
		if o.Verb == Delete {
			return fmt.Sprintf("%s %s -r %s", text, obj.Server, obj.Addr)
		}
	case Set:
		if o.Verb == Delete {
			return text + " " + obj.Name
		}
	}
	return text + " " + o.Object.String()
}

// Errors of backends that the agent's loop distinguishes.
var (
	ErrExists = errors.New("already exists")
	// ErrNotFound means that the object of an Update does not exist. Deleting a missing object succeeds.
	ErrNotFound = errors.New("does not exist")
	// ErrUnavailable means that the kernel does not support this, for example because a module is missing. The text contains the remedy.
	ErrUnavailable = errors.New("not available in this kernel")
	ErrFull        = errors.New("set is full")
)

// Programs returns the name of a family's iptables programs, as in StuckError.Part.
func Programs(f inet.Family) string {
	if f == inet.IPv6 {
		return "ip6tables"
	}
	return "iptables"
}

// StuckError means that a part of the node's kernel interface does not answer, or fails. Only operations on that part fail (I16).
type StuckError struct {
	Part, Doing string
	// Since is the start of the first failed call after the last success.
	Since time.Time
	// Cause is the error of the last call; nil while the call runs.
	Cause error
}

func (e StuckError) Error() string {
	if e.Cause != nil {
		return fmt.Sprintf("%s has failed since %s: %s: %v", e.Part, e.Since.Format(time.TimeOnly), e.Doing, e.Cause)
	}
	return fmt.Sprintf("%s is stuck: %s since %s", e.Part, e.Doing, e.Since.Format(time.TimeOnly))
}

func (e StuckError) Unwrap() error { return e.Cause }

// LoadModule returns the remedy for a missing kernel module.
func LoadModule(name string) string {
	return fmt.Sprintf("run `modprobe %s` on the node, and list it in /etc/modules-load.d; if the module does not exist, install the package with the other kernel modules "+
		"(Debian: linux-image-amd64; Ubuntu: linux-modules-extra; RHEL: kernel-modules, kernel-modules-extra)", name)
}

// NoSchedulerError means that the kernel lacks a scheduler. It is an ErrUnavailable.
type NoSchedulerError struct{ Scheduler string }

func (e NoSchedulerError) Error() string {
	return fmt.Sprintf("scheduler %q is %v: the module ip_vs_%[1]s is missing; run `modprobe ip_vs_%[1]s` on the node", e.Scheduler, ErrUnavailable)
}

func (e NoSchedulerError) Unwrap() error { return ErrUnavailable }
