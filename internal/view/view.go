package view

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// Version is the version of every inspection document.
const Version = "inspect.kube-ipvs.io/v1"

// Header starts every inspection document.
type Header struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

// HeaderOf returns the header of a kind of document.
func HeaderOf(kind string) Header { return Header{Version, kind} }

// View is a snapshot of an agent's state.
type View struct {
	Time  time.Time `json:"time"`
	Agent Agent     `json:"agent"`
	// Node is the machine, and Sources are the sources of Services. The daemon adds both to the loop's view.
	Node    Node     `json:"node"`
	Sources []Source `json:"sources"`
	// Snapshot is nil if no snapshot is configured.
	Snapshot *Snapshot `json:"snapshot,omitempty"`
	Totals   Totals    `json:"totals"`
	// Problems are the problems of all objects, including this node. NodeProblems are the problems of this node; absent if there are none.
	Problems     []string      `json:"problems"`
	NodeProblems []NodeProblem `json:"nodeProblems,omitempty"`
	// Base is the part of the wanted kernel state that does not depend on Services.
	Base Base `json:"base"`
	// Services are the Services that the request selected.
	Services []Service `json:"services"`
	// History is nil unless the request asks for it.
	History *History `json:"history,omitempty"`
	// Forwarded is nil unless the agent balances in user space and the request asks for it.
	Forwarded *Forwarded `json:"forwarded,omitempty"`
}

// Agent is the state of the reconciliation loop.
type Agent struct {
	// Synced is true once every source has delivered its initial list. Until then, the agent writes at most the state in its snapshot.
	Synced bool `json:"synced"`
	// Busy is true if a sync keeps the loop from answering. The view is then an earlier view, taken at Time.
	Busy bool `json:"busy,omitempty"`
	// LastSync and LastFullSync are nil before the first sync of that kind. A full sync compares everything with the kernel.
	LastSync     *Sync `json:"lastSync,omitempty"`
	LastFullSync *Sync `json:"lastFullSync,omitempty"`
	// Error is the error of the last failed sync, until a full sync succeeds. RetryAt is the time of the next full sync.
	Error   string     `json:"error,omitempty"`
	RetryAt *time.Time `json:"retryAt,omitempty"`
	// Drift counts the differences that no change in the cluster explains and that the agent has repaired since it
	// started.
	Drift int `json:"drift"`
	// LastDrift is when drift was last found.
	LastDrift *time.Time `json:"lastDrift,omitempty"`
	// Drifts groups the repaired differences by part and kind, sorted.
	Drifts []Drift `json:"drifts"`
	// Foreign lists virtual servers of other programs that use a Service's address and port.
	Foreign []Foreign `json:"foreign"`
	// Leftovers are objects on kube-ipvs0 that have neither a Service nor an owner record. The agent leaves them alone.
	Leftovers []string `json:"leftovers"`
}

// Drift describes one kind of drift in one part of the kernel since the agent started.
type Drift struct {
	Part string `json:"part"`
	Kind string `json:"kind"`
	// Count is the number of differences; Audits is the number of audits that found any.
	Count  int `json:"count"`
	Audits int `json:"audits"`
	// First and Last are the times at which drift was first and last found; What describes the latest drift.
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
	What  []string  `json:"what"`
}

// NodeProblem is a problem of this node, not of a Service. Text is the complete text of the problem, as in View.Problems.
type NodeProblem struct {
	Text    string `json:"text"`
	Problem string `json:"problem"`
	Remedy  string `json:"remedy"`
}

// Elsewhere reports that the agent runs in another network namespace than the caller. It returns "" if the namespaces are the same, or if one of
// them is unknown.
func (v *View) Elsewhere(here string) string {
	if v == nil || here == "" || v.Node.NetworkNamespace == "" || v.Node.NetworkNamespace == here {
		return ""
	}
	return fmt.Sprintf("the agent (process %d) runs in the network namespace %s, but this command runs in %s", v.Node.PID, v.Node.NetworkNamespace, here)
}

// AddNodeProblems adds problems of this node without modifying the existing lists.
func (v *View) AddNodeProblems(all []model.Problem) {
	v.Problems, v.NodeProblems = slices.Clone(v.Problems), slices.Clone(v.NodeProblems)
	for _, p := range all {
		text, remedy := p.String(), cmp.Or(p.Remedy, "fix the cause named in the problem")
		p.Remedy = ""
		v.Problems = append(v.Problems, text)
		v.NodeProblems = append(v.NodeProblems, NodeProblem{text, strings.TrimPrefix(p.String(), p.Object.String()+": "), remedy})
	}
}

// OtherProblems returns the problems of all objects except this node.
func (v *View) OtherProblems() []string {
	return slices.DeleteFunc(slices.Clone(v.Problems), func(text string) bool {
		return slices.ContainsFunc(v.NodeProblems, func(p NodeProblem) bool { return p.Text == text })
	})
}

// Sync describes one comparison of the wanted state with the kernel, and the writes that followed.
type Sync struct {
	Started time.Time `json:"started"`
	Seconds float64   `json:"seconds"`
	// Changes counts successful operations; Failed counts operations that failed or were skipped.
	Changes int `json:"changes"`
	Failed  int `json:"failed"`
}

// Foreign is a virtual server that kube-ipvs did not create and that prevents a Service from being served.
type Foreign struct {
	Server  string `json:"server"`
	Service string `json:"service"`
}

// Node describes the machine and the agent's configuration.
type Node struct {
	Name    string `json:"name"`
	Version string `json:"version"`
	PID     int    `json:"pid"`
	Kernel  string `json:"kernel"`
	// NetworkNamespace is the network namespace in which the agent runs, as the link /proc/PID/ns/net shows it; empty if it is unknown.
	NetworkNamespace string `json:"networkNamespace,omitempty"`
	// Mode is the data plane and the rule layer. DataPlane and Rules describe it in words, with the reasons.
	Mode      kernel.Mode `json:"mode"`
	DataPlane string      `json:"dataPlane,omitempty"`
	Rules     string      `json:"rules"`
	// Families lists the served address families. UnservedFamilies lists the unserved ones, each with the reason.
	Families         []string  `json:"families"`
	UnservedFamilies []string  `json:"unservedFamilies"`
	Started          time.Time `json:"started"`
	// ConfigFile is empty if there is none. Settings are the explicitly configured settings.
	ConfigFile string `json:"configFile,omitempty"`
	// ConfigError is the reason why the file's current content is invalid; the previous settings stay in effect.
	ConfigError string    `json:"configError,omitempty"`
	Settings    []Setting `json:"settings"`
	// Addresses are the node's own addresses, except for those on kube-ipvs0.
	Addresses []netip.Addr `json:"addresses"`
	// ReservesNodePorts is true if the agent keeps this node's own connections from using node ports as source ports. An agent of version 0.1.0 never does.
	ReservesNodePorts bool `json:"reservesNodePorts,omitempty"`
	// LoopbackAddresses are the loopback addresses on which the agent accepts connections to node ports.
	LoopbackAddresses []netip.Addr `json:"loopbackAddresses,omitempty"`
}

// Source is one source of Services.
type Source struct {
	Name string `json:"name"`
	// LastContact is the time of the last message from the source; nil if there was no message or the time is unknown.
	LastContact *time.Time `json:"lastContact,omitempty"`
	Error       string     `json:"error,omitempty"`
}

// staleAfter is the time without messages after which a source is stale. An API server sends a bookmark about once a minute for each kind,
// and ends a watch after at most ten minutes.
const staleAfter = 11 * time.Minute

// problem returns the reason why the source does not follow the cluster; empty if it does.
func (s Source) problem(now time.Time) string {
	switch {
	case s.Error != "":
		return s.Error
	case s.LastContact != nil && now.Sub(*s.LastContact) > staleAfter:
		return fmt.Sprintf("last contact %s ago", now.Sub(*s.LastContact).Round(time.Second))
	}
	return ""
}

// Snapshot is the file with the last known state of the cluster.
type Snapshot struct {
	File string `json:"file"`
	// At is when the state in the file was last known to be up to date; nil if there is no usable file.
	At *time.Time `json:"at,omitempty"`
	// Served is true while the node serves that state because the API server is unavailable.
	Served bool `json:"served"`
	// Error is the reason why the file cannot be used or written.
	Error string `json:"error,omitempty"`
}

// Totals count everything, even if the request selects only one Service.
type Totals struct {
	Services       int `json:"services"`
	VirtualServers int `json:"virtualServers"`
	Destinations   int `json:"destinations"`
	Draining       int `json:"draining"`
}

// Setting is a value and its origin.
type Setting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	From  string `json:"from"`
}

// Setting returns the value of a setting, or the default if it is not set.
func (n Node) Setting(name, byDefault string) string {
	for _, s := range n.Settings {
		if s.Name == name {
			return s.Value
		}
	}
	return byDefault
}

// Service describes one Service as this node serves it.
type Service struct {
	Namespace string     `json:"namespace,omitempty"`
	Name      string     `json:"name,omitempty"`
	Frontends []Frontend `json:"frontends"`
	Problems  []string   `json:"problems"`
}

// ID returns the name of the Service; empty if no agent responds.
func (s Service) ID() string {
	if s.Name == "" {
		return ""
	}
	return model.ServiceID{Namespace: s.Namespace, Name: s.Name}.String()
}

// Vital reports whether every pod needs the Service.
func (s Service) Vital() bool {
	dns := slices.ContainsFunc(s.Frontends, func(f Frontend) bool { return f.Address.Port() == 53 && f.Protocol == "udp" })
	return model.ServiceID{Namespace: s.Namespace, Name: s.Name}.Vital(dns)
}

// Kind is the kind of a frontend.
type Kind string

// The kinds of frontend; Unknown if no agent responds.
const (
	ClusterIP    Kind = "ClusterIP"
	LoadBalancer Kind = "LoadBalancer"
	ExternalIP   Kind = "ExternalIP"
	NodePort     Kind = "NodePort"
	Unknown      Kind = "Unknown"
)

// FrontendState describes what happens to new connections to a frontend.
type FrontendState string

// The states of a frontend.
const (
	Served           FrontendState = "Served"
	NoEndpoints      FrontendState = "NoEndpoints"      // refused
	NoLocalEndpoints FrontendState = "NoLocalEndpoints" // dropped: the internal policy is Local, and no endpoint is on this node
	InternalOnly     FrontendState = "InternalOnly"     // pods and the node reach endpoints on other nodes; packets from other clients are dropped
	Conflict         FrontendState = "Conflict"         // another Service takes precedence
	ForeignServer    FrontendState = "ForeignServer"    // a foreign virtual server uses the address and port
	Missing          FrontendState = "Missing"          // wanted, but not in the kernel
)

// Frontend is one address and port of a Service.
type Frontend struct {
	Port     string         `json:"port,omitempty"` // the name of the Service's port
	Kind     Kind           `json:"kind"`
	Address  netip.AddrPort `json:"address"`
	Protocol string         `json:"protocol"`
	State    FrontendState  `json:"state"`
	// Reason explains the state; it may be empty.
	Reason string `json:"reason,omitempty"`
	// Owner is the Service that has the frontend instead, if the state is Conflict.
	Owner string `json:"owner,omitempty"`
	// Policy is the effective traffic policy, Cluster or Local.
	Policy string `json:"policy,omitempty"`
	// Bound is true if the address is bound to kube-ipvs0; other addresses are the node's own.
	Bound     bool   `json:"bound"`
	Scheduler string `json:"scheduler,omitempty"`
	// Affinity is the timeout of session affinity; 0 for none.
	Affinity uint32 `json:"affinitySeconds,omitempty"`
	// Server is the virtual server as ipvsadm prints it. If AllPorts is true, it has port 0 and serves all ports of the
	// address; its counters include all ports.
	Server   string `json:"server,omitempty"`
	AllPorts bool   `json:"allPorts,omitempty"`
	// Settings are the effective settings, each with its origin.
	Settings []Setting `json:"settings"`
	// SourceRanges are the clients that may connect; empty means all.
	SourceRanges []netip.Prefix `json:"sourceRanges,omitempty"`
	SetEntries   []SetEntry     `json:"setEntries"`
	Endpoints    []Endpoint     `json:"endpoints"`
	// Connections are the connections in the kernel; nil if they were not read.
	Connections *Connections `json:"connections,omitempty"`
}

// Ours reports whether the virtual server at the frontend, with its connections, belongs to the Service.
func (f Frontend) Ours() bool { return f.State != Conflict && f.State != ForeignServer }

// Is reports whether the frontend has the address, port and protocol of a virtual server.
func (f Frontend) Is(key kernel.ServerKey) bool {
	return f.Address == key.Addr && f.Protocol == key.Protocol.String()
}

// SetEntry is an entry of an ipset for a frontend.
type SetEntry struct {
	Set   string `json:"set"`
	Entry string `json:"entry"`
}

// EndpointState describes what happens to new connections to an endpoint.
type EndpointState string

// The states of an endpoint.
const (
	Ready           EndpointState = "Ready"
	SlowStart       EndpointState = "SlowStart"   // ready; its weight is still rising
	Serving         EndpointState = "Serving"     // terminating; used because none is ready
	Excluded        EndpointState = "Excluded"    // ready, but reserved for other clients by traffic policy or topology hints
	Stopped         EndpointState = "Stopped"     // an annotation sets its weight to 0; it keeps its open connections
	Drained         EndpointState = "Drained"     // an annotation sets its weight to 0, and no connections remain through this node
	Draining        EndpointState = "Draining"    // receives no new connections, but keeps its open ones
	Terminating     EndpointState = "Terminating" // without connections
	NotReady        EndpointState = "NotReady"
	Pending         EndpointState = "Pending" // wanted, but not in the kernel
	UnknownEndpoint EndpointState = "Unknown" // no agent responds; only the kernel's state is shown
)

// GetsConnections reports whether new connections reach an endpoint in this state.
func (s EndpointState) GetsConnections() bool { return s == Ready || s == SlowStart || s == Serving }

// Endpoint is an endpoint of a frontend.
type Endpoint struct {
	Address netip.AddrPort `json:"address"`
	Pod     string         `json:"pod,omitempty"`
	Node    string         `json:"node,omitempty"`
	Zone    string         `json:"zone,omitempty"`
	State   EndpointState  `json:"state"`
	// Since is when this agent first saw the endpoint draining or in slow start.
	Since *time.Time `json:"since,omitempty"`
	// Weight is the weight in the kernel, and Wanted the final weight; nil if there is none.
	Weight      *uint32      `json:"weight,omitempty"`
	Wanted      *uint32      `json:"wantedWeight,omitempty"`
	Connections *Connections `json:"connections,omitempty"`
}

// Connections contains the kernel's counts at the time of the query.
type Connections struct {
	Active   uint64 `json:"active"`
	Inactive uint64 `json:"inactive"`
}

// Base is the part of the wanted state that does not depend on Services.
type Base struct {
	Sysctls []Sysctl `json:"sysctls"`
	Sets    []string `json:"sets"`
	Rules   []Rule   `json:"rules"`
	// Ledgers are the sets that record the agent's virtual servers.
	Ledgers []string `json:"ledgers"`
	// MasqueradeMark is the packet mark that requests masquerading.
	MasqueradeMark uint32 `json:"masqueradeMark"`
}

// Sysctl is a kernel parameter and the value that it must have.
type Sysctl struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Rule is a rule in one of the agent's chains, or a jump to such a chain.
type Rule struct {
	Family string `json:"family"`
	Table  string `json:"table"`
	Chain  string `json:"chain"`
	// Jump is true if the rule is in a built-in chain and jumps to one of the agent's chains.
	Jump bool   `json:"jump"`
	Tag  string `json:"tag"`
	Rule string `json:"rule"`
	Why  string `json:"why"`
}
