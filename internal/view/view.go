package view

import (
	"net/netip"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// Version is the version of every inspection document.
const Version = "inspect.kube-ipvs.io/v1"

// View is what an agent knew at one time.
type View struct {
	Time  time.Time `json:"time"`
	Agent Agent     `json:"agent"`
	// Node is the machine, Sources are where Services come from. The loop knows neither; the process adds them.
	Node     Node     `json:"node"`
	Sources  []Source `json:"sources"`
	Totals   Totals   `json:"totals"`
	Problems []string `json:"problems"`
	// Base is what the agent wants in the kernel independently of Services.
	Base Base `json:"base"`
	// Services are those that the request selected.
	Services []Service `json:"services"`
}

// Agent is the reconciliation loop.
type Agent struct {
	// Synced is true once every source has delivered its initial list. The agent writes nothing before.
	Synced bool `json:"synced"`
	// LastSync and LastFullSync are nil before the first one. A full sync reads the whole kernel.
	LastSync     *Sync `json:"lastSync,omitempty"`
	LastFullSync *Sync `json:"lastFullSync,omitempty"`
	// Error is that of the last failed sync until a full sync succeeds, RetryAt when the next full sync follows.
	Error   string     `json:"error,omitempty"`
	RetryAt *time.Time `json:"retryAt,omitempty"`
	// Drift counts the differences repaired since the agent started that no change in the cluster explains.
	Drift int `json:"drift"`
	// LastDrift is when drift was last found.
	LastDrift *time.Time `json:"lastDrift,omitempty"`
	// Drifts are these differences by part and kind, sorted.
	Drifts []Drift `json:"drifts"`
	// Foreign are foreign virtual servers in the place of a Service's.
	Foreign []Foreign `json:"foreign"`
	// Leftovers are on kube-ipvs0, belong to no Service and are not in the ledger. The agent leaves them alone.
	Leftovers []string `json:"leftovers"`
}

// Drift is what audits found of one kind in one part of the kernel since the agent started.
type Drift struct {
	Part string `json:"part"`
	Kind string `json:"kind"`
	// Count is the number of differences, Audits that of the audits that found some.
	Count  int `json:"count"`
	Audits int `json:"audits"`
	// First and Last are when drift was found, What is what was found last.
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
	What  []string  `json:"what"`
}

// Sync is one run of compare and write.
type Sync struct {
	Started time.Time `json:"started"`
	Seconds float64   `json:"seconds"`
	// Changes are operations that succeeded, Failed those that failed or were skipped.
	Changes int `json:"changes"`
	Failed  int `json:"failed"`
}

// Foreign is a virtual server not created by kube-ipvs, because of which a Service is not served there.
type Foreign struct {
	Server  string `json:"server"`
	Service string `json:"service"`
}

// Node is the machine, and how the agent was started on it.
type Node struct {
	Name     string `json:"name"`
	Version  string `json:"version"`
	PID      int    `json:"pid"`
	Kernel   string `json:"kernel"`
	IPTables string `json:"iptables"`
	// Families are those served. UnservedFamilies are the others, each with the reason.
	Families         []string  `json:"families"`
	UnservedFamilies []string  `json:"unservedFamilies"`
	Started          time.Time `json:"started"`
	// ConfigFile is empty without one. Settings are those set explicitly.
	ConfigFile string `json:"configFile,omitempty"`
	// ConfigError is why the file's present content cannot be used; the previous settings stay in force.
	ConfigError string    `json:"configError,omitempty"`
	Settings    []Setting `json:"settings"`
	// Addresses are the node's own, without those of kube-ipvs0.
	Addresses []netip.Addr `json:"addresses"`
	// LoopbackAddresses are those at which the agent's process accepts connections to node ports.
	LoopbackAddresses []netip.Addr `json:"loopbackAddresses,omitempty"`
}

// Source is one source of Services.
type Source struct {
	Name string `json:"name"`
	// LastContact is when the source last sent something; nil if never, or if that is not known.
	LastContact *time.Time `json:"lastContact,omitempty"`
	Error       string     `json:"error,omitempty"`
}

// Totals count everything, even if the request selects one Service.
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

// Service is one Service as this node serves it.
type Service struct {
	Namespace string     `json:"namespace,omitempty"`
	Name      string     `json:"name,omitempty"`
	Frontends []Frontend `json:"frontends"`
	Problems  []string   `json:"problems"`
}

// ID names the Service; it is empty if only the kernel is known.
func (s Service) ID() string {
	if s.Name == "" {
		return ""
	}
	return model.ServiceID{Namespace: s.Namespace, Name: s.Name}.String()
}

// Kind is what a frontend is for its Service.
type Kind string

// The kinds of frontend; Unknown if only the kernel is known.
const (
	ClusterIP    Kind = "ClusterIP"
	LoadBalancer Kind = "LoadBalancer"
	ExternalIP   Kind = "ExternalIP"
	NodePort     Kind = "NodePort"
	Unknown      Kind = "Unknown"
)

// FrontendState says what happens to new connections to a frontend.
type FrontendState string

// The states of a frontend.
const (
	Served           FrontendState = "Served"
	NoEndpoints      FrontendState = "NoEndpoints"      // refused
	NoLocalEndpoints FrontendState = "NoLocalEndpoints" // dropped: the internal policy is Local, and no endpoint is on this node
	InternalOnly     FrontendState = "InternalOnly"     // pods and the node reach endpoints on other nodes, all others are dropped
	Conflict         FrontendState = "Conflict"         // another Service has the better claim
	ForeignServer    FrontendState = "ForeignServer"    // a virtual server not created by kube-ipvs is in its place
	Missing          FrontendState = "Missing"          // wanted, and not in the kernel
)

// Frontend is one address and port of a Service.
type Frontend struct {
	Port     string         `json:"port,omitempty"` // the name of the Service's port
	Kind     Kind           `json:"kind"`
	Address  netip.AddrPort `json:"address"`
	Protocol string         `json:"protocol"`
	State    FrontendState  `json:"state"`
	// Reason explains the state, if there is more to say.
	Reason string `json:"reason,omitempty"`
	// Owner is the Service that has the frontend, in state Conflict.
	Owner string `json:"owner,omitempty"`
	// Policy is the traffic policy in force, Cluster or Local.
	Policy string `json:"policy,omitempty"`
	// Bound is true if the address is on kube-ipvs0; other addresses are the node's own.
	Bound     bool   `json:"bound"`
	Scheduler string `json:"scheduler,omitempty"`
	// Affinity is how many seconds a client stays with its endpoint; 0 for none.
	Affinity uint32 `json:"affinitySeconds,omitempty"`
	// Server is the virtual server as ipvsadm prints it. If AllPorts is true, it has port 0 and takes all ports of the address, and its
	// counters are those of all ports.
	Server   string `json:"server,omitempty"`
	AllPorts bool   `json:"allPorts,omitempty"`
	// Settings are those in force, each with its origin.
	Settings []Setting `json:"settings"`
	// SourceRanges are the clients that may connect; empty means all.
	SourceRanges []netip.Prefix `json:"sourceRanges,omitempty"`
	SetEntries   []SetEntry     `json:"setEntries"`
	Endpoints    []Endpoint     `json:"endpoints"`
	// Connections are read from the kernel; nil if they were not.
	Connections *Connections `json:"connections,omitempty"`
}

// SetEntry is an ipset entry that exists for a frontend.
type SetEntry struct {
	Set   string `json:"set"`
	Entry string `json:"entry"`
}

// EndpointState says what happens to new connections to an endpoint.
type EndpointState string

// The states of an endpoint.
const (
	Ready           EndpointState = "Ready"
	SlowStart       EndpointState = "SlowStart"   // ready; its weight rises to the full one
	Serving         EndpointState = "Serving"     // terminating; used because none is ready
	Excluded        EndpointState = "Excluded"    // ready; traffic policy or topology hints reserve it for other clients
	Stopped         EndpointState = "Stopped"     // its weight is 0 by annotation; it keeps its open connections
	Drained         EndpointState = "Drained"     // its weight is 0 by annotation, and no connection is left through this node
	Draining        EndpointState = "Draining"    // no new connections; it keeps its open ones
	Terminating     EndpointState = "Terminating" // without connections
	NotReady        EndpointState = "NotReady"
	Pending         EndpointState = "Pending" // wanted, and not in the kernel
	UnknownEndpoint EndpointState = "Unknown" // only the kernel is known
)

// Endpoint is an endpoint of a frontend.
type Endpoint struct {
	Address netip.AddrPort `json:"address"`
	Pod     string         `json:"pod,omitempty"`
	Node    string         `json:"node,omitempty"`
	Zone    string         `json:"zone,omitempty"`
	State   EndpointState  `json:"state"`
	// Since is the time at which this agent saw the endpoint start to drain, or its slow start begin.
	Since *time.Time `json:"since,omitempty"`
	// Weight is the weight in the kernel; Wanted is the final one. Each is nil if the endpoint is missing there.
	Weight      *uint32      `json:"weight,omitempty"`
	Wanted      *uint32      `json:"wantedWeight,omitempty"`
	Connections *Connections `json:"connections,omitempty"`
}

// Connections are counted when the document is made.
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
	// MasqueradeMark is the packet mark that requests masquerading.
	MasqueradeMark uint32 `json:"masqueradeMark"`
}

// Sysctl is a kernel parameter and the value that it must have.
type Sysctl struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Rule is a rule of ours.
type Rule struct {
	Family string `json:"family"`
	Table  string `json:"table"`
	Chain  string `json:"chain"`
	// Jump is true if the rule is in a built-in chain and leads to one of ours.
	Jump bool   `json:"jump"`
	Tag  string `json:"tag"`
	Rule string `json:"rule"`
	Why  string `json:"why"`
}
