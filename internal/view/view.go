package view

import (
	"net/netip"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// Version is that of every document of inspection.
const Version = "inspect.kube-ipvs.io/v1"

// View is what one agent knew at one time.
type View struct {
	Time  time.Time `json:"time"`
	Agent Agent     `json:"agent"`
	// Node is the machine, Sources are where Services come from: what the loop does not know itself.
	Node     Node     `json:"node"`
	Sources  []Source `json:"sources"`
	Totals   Totals   `json:"totals"`
	Problems []string `json:"problems"`
	// Base is what the agent wants in the kernel whatever the Services are.
	Base Base `json:"base"`
	// Services are those that were asked for.
	Services []Service `json:"services"`
}

// Agent is the loop.
type Agent struct {
	// Synced says that everything in the cluster has been heard of once; nothing is written before.
	Synced bool `json:"synced"`
	// LastPass and LastFullPass are nil before the first one. A full pass reads the whole kernel.
	LastPass     *Pass `json:"lastPass,omitempty"`
	LastFullPass *Pass `json:"lastFullPass,omitempty"`
	// Error of the last pass that failed and has not been made good, and when it is tried again.
	Error string     `json:"error,omitempty"`
	Retry *time.Time `json:"retry,omitempty"`
	// Drift counts the differences that somebody else made in the kernel and that were repaired, since the start.
	Drift int `json:"drift"`
	// LastDrift is when such differences were last found.
	LastDrift *time.Time `json:"lastDrift,omitempty"`
	// Foreign are virtual servers of others where a Service wants one.
	Foreign []Foreign `json:"foreign"`
	// Leftovers are on kube-ipvs0, belong to no Service and are not recorded as ours.
	Leftovers []string `json:"leftovers"`
}

// Pass is one round of the loop.
type Pass struct {
	Started time.Time `json:"started"`
	Seconds float64   `json:"seconds"`
	Changes int       `json:"changes"`
	Failed  int       `json:"failed"`
}

// Foreign is a place where a Service is not served, because somebody else's virtual server stands there.
type Foreign struct {
	Server  string `json:"server"`
	Service string `json:"service"`
}

// Node is the machine, and how the agent was started on it.
type Node struct {
	Name     string `json:"name"`
	Version  string `json:"version"`
	Process  int    `json:"process"`
	Kernel   string `json:"kernel"`
	IPTables string `json:"iptables"`
	// Families that are served, and why the others are not.
	Families  []string  `json:"families"`
	NotServed []string  `json:"notServed"`
	Started   time.Time `json:"started"`
	// Configuration is the file, or empty; Settings are those that somebody gave, with their origin.
	Configuration string `json:"configuration,omitempty"`
	// ConfigurationRefused says why the file as it is now cannot be used; the settings from before are in force then.
	ConfigurationRefused string    `json:"configurationRefused,omitempty"`
	Settings             []Setting `json:"settings"`
	// Addresses are the node's own, without those of kube-ipvs0.
	Addresses []netip.Addr `json:"addresses"`
}

// Source is one thing that the agent listens to.
type Source struct {
	Name string `json:"name"`
	// Heard is when it last said something; nil for never, or where that is not known.
	Heard *time.Time `json:"heard,omitempty"`
	Error string     `json:"error,omitempty"`
}

// Totals count everything, whatever was asked for.
type Totals struct {
	Services       int `json:"services"`
	VirtualServers int `json:"virtualServers"`
	Destinations   int `json:"destinations"`
	Draining       int `json:"draining"`
}

// Setting is a value and where it comes from.
type Setting struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	From  string `json:"from"`
}

// Service is one Service as this node serves it.
type Service struct {
	Namespace string   `json:"namespace,omitempty"`
	Name      string   `json:"name,omitempty"`
	Fronts    []Front  `json:"fronts"`
	Problems  []string `json:"problems"`
}

// ID names the Service; it is empty where only the kernel is known.
func (s Service) ID() string {
	if s.Name == "" {
		return ""
	}
	return model.ServiceID{Namespace: s.Namespace, Name: s.Name}.String()
}

// Kind is what a front is for its Service.
type Kind string

// The kinds of front; Unknown where only the kernel is known.
const (
	ClusterIP    Kind = "ClusterIP"
	LoadBalancer Kind = "LoadBalancer"
	ExternalIP   Kind = "ExternalIP"
	NodePort     Kind = "NodePort"
	Unknown      Kind = "Unknown"
)

// FrontState says what becomes of new connections to a front.
type FrontState string

// The states of a front.
const (
	Served      FrontState = "Served"
	NoEndpoints FrontState = "NoEndpoints" // refused
	NoLocal     FrontState = "NoLocal"     // dropped: the policy is Local, and no endpoint is on this node
	InsideOnly  FrontState = "InsideOnly"  // pods and the node are served by endpoints elsewhere, others are dropped
	Claimed     FrontState = "Claimed"     // another Service has the better claim
	Taken       FrontState = "Taken"       // somebody else's virtual server stands there
	Missing     FrontState = "Missing"     // wanted, and not in the kernel
)

// Front is one address and port of a Service: one virtual server.
type Front struct {
	Port     string         `json:"port,omitempty"` // the name of the Service's port
	Kind     Kind           `json:"kind"`
	Address  netip.AddrPort `json:"address"`
	Protocol string         `json:"protocol"`
	State    FrontState     `json:"state"`
	// Reason says more about the state, where there is more to say.
	Reason string `json:"reason,omitempty"`
	// Policy is the traffic policy in force, Cluster or Local.
	Policy string `json:"policy,omitempty"`
	// Bound says that the address is one of kube-ipvs0; the others are the node's own.
	Bound     bool   `json:"bound"`
	Scheduler string `json:"scheduler,omitempty"`
	// Affinity is how many seconds a client stays with its endpoint; 0 for none.
	Affinity uint32 `json:"affinitySeconds,omitempty"`
	// Server is the virtual server in the words of ipvsadm. AllPorts says that it is one for all ports of the address, which has
	// port 0: its numbers are those of all.
	Server   string `json:"server,omitempty"`
	AllPorts bool   `json:"allPorts,omitempty"`
	// Settings are those in force, and where each comes from.
	Settings []Setting `json:"settings"`
	// SourceRanges are the clients that may use it; none means everybody.
	SourceRanges []netip.Prefix `json:"sourceRanges,omitempty"`
	SetEntries   []SetEntry     `json:"setEntries"`
	Endpoints    []Endpoint     `json:"endpoints"`
	// Connections are read from the kernel; nil where they were not.
	Connections *Connections `json:"connections,omitempty"`
}

// SetEntry is an entry of an ipset that exists for a front.
type SetEntry struct {
	Set   string `json:"set"`
	Entry string `json:"entry"`
}

// EndpointState says what becomes of new connections to an endpoint.
type EndpointState string

// The states of an endpoint.
const (
	Ready       EndpointState = "Ready"
	Rising      EndpointState = "Rising"      // ready; its weight grows to the full one
	Serving     EndpointState = "Serving"     // terminating; it is used because none is ready
	NotMeant    EndpointState = "NotMeant"    // ready, but for other clients: policy Local, or topology hints
	Stopped     EndpointState = "Stopped"     // its weight is 0 by annotation; it keeps its open connections
	Drained     EndpointState = "Drained"     // its weight is 0 by annotation, and no connection is left through this node
	Draining    EndpointState = "Draining"    // no new connections; it keeps its open ones
	Terminating EndpointState = "Terminating" // without connections
	Unready     EndpointState = "Unready"
	Unwritten   EndpointState = "Unwritten" // wanted, and not in the kernel
	Unexplained EndpointState = "Unknown"   // only the kernel is known
)

// Endpoint is one place where a front may send connections.
type Endpoint struct {
	Address netip.AddrPort `json:"address"`
	Pod     string         `json:"pod,omitempty"`
	Node    string         `json:"node,omitempty"`
	Zone    string         `json:"zone,omitempty"`
	State   EndpointState  `json:"state"`
	// Since is when a draining endpoint began to drain or a rising one to rise, as far as this agent knows.
	Since *time.Time `json:"since,omitempty"`
	// Weight is what the kernel has, and Wanted what it is to have in the end; nil where the endpoint is not there.
	Weight      *uint32      `json:"weight,omitempty"`
	Wanted      *uint32      `json:"wantedWeight,omitempty"`
	Connections *Connections `json:"connections,omitempty"`
}

// Connections are those of this moment.
type Connections struct {
	Active   uint64 `json:"active"`
	Inactive uint64 `json:"inactive"`
}

// Base is the part of the wanted state that does not depend on Services.
type Base struct {
	Sysctls []Sysctl `json:"sysctls"`
	Sets    []string `json:"sets"`
	Rules   []Rule   `json:"rules"`
	// Ledgers are the sets that record which virtual servers are ours.
	Ledgers []string `json:"ledgers"`
	// MasqueradeMark is the packet mark that asks for masquerading.
	MasqueradeMark uint32 `json:"masqueradeMark"`
}

// Sysctl is a setting of the kernel that must have this value.
type Sysctl struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Rule is a rule of ours.
type Rule struct {
	Family string `json:"family"`
	Table  string `json:"table"`
	Chain  string `json:"chain"`
	// Jump says that it is in somebody else's chain and leads to one of ours.
	Jump bool   `json:"jump"`
	Tag  string `json:"tag"`
	Rule string `json:"rule"`
	Why  string `json:"why"`
}
