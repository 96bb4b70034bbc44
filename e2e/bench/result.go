// Package bench compares kube-ipvs with the modes of kube-proxy, and with kube-router. It uses the clock of a guest
// whose CPU executes one instruction per nanosecond, so results are nearly the same on any machine.
//
// Each measurement runs in a separate guest. The test acts as the API server, because a real API server would share the
// only CPU and dominate the figures. The programs, the kernel and the connections are real.
package bench

import "time"

// Result contains one program's measurements for one number of Services.
type Result struct {
	Program  string `json:"program"` // "kube-ipvs", "kube-proxy iptables", ..., "kube-router", "IPVS alone", "IPVS with conntrack"
	Version  string `json:"version,omitempty"`
	Services int    `json:"services"`

	Start   *Start   `json:"start,omitempty"`
	Memory  *Memory  `json:"memory,omitempty"`
	Idle    *Idle    `json:"idle,omitempty"`
	Changes *Changes `json:"changes,omitempty"`
	// Rollouts contains the rolling update of each large Service, smallest first.
	Rollouts []Rollout `json:"rollouts,omitempty"`
	Storms   []Storm   `json:"storms,omitempty"`
	Packets  *Packets  `json:"packets,omitempty"`
	Flows    *Flows    `json:"flows,omitempty"`
}

// Start contains times from the start of the program until a pod can connect. Zero means that it took longer than
// Limit.
type Start struct {
	Half  Seconds `json:"half"` // through half of the sampled Services
	All   Seconds `json:"all"`
	CPU   Seconds `json:"cpu"` // of the program and its children
	Limit Seconds `json:"limit"`
	// Usable is how many of the Probed Services could be reached within Limit. Older results have 0 for both.
	Usable int `json:"usable,omitempty"`
	Probed int `json:"probed,omitempty"`
}

// Memory is the resident memory of the program.
type Memory struct {
	Started Megabytes `json:"started"` // anonymous memory
	Idle    Megabytes `json:"idle"`    // anonymous memory
	Files   Megabytes `json:"files"`   // pages of files, such as the program itself, which several processes can share
}

// Idle is measured without changes, after the program has settled.
type Idle struct {
	CPU  Percent `json:"cpu"`
	Took Seconds `json:"took"`
}

// Changes measures the time from the update of a Service's only endpoint in the API server until a connection reaches
// the new endpoint.
type Changes struct {
	Count  int          `json:"count"`
	Median Milliseconds `json:"median"`
	P99    Milliseconds `json:"p99"`
	Worst  Milliseconds `json:"worst"`
	CPU    Milliseconds `json:"cpu"` // of the program, median
}

// Rollout is a rolling update of a Service, ten endpoints at a time. It is the median of several.
type Rollout struct {
	Endpoints int     `json:"endpoints"`
	CPU       Seconds `json:"cpu"`
	Took      Seconds `json:"took"` // until a connection reaches an endpoint that changed last
}

// Storm is a period with many changes or without the API server.
type Storm struct {
	Name    string  `json:"name"`
	Updates int     `json:"updates"` // of EndpointSlices
	CPU     Seconds `json:"cpu"`
	Took    Seconds `json:"took"` // from the first update until the program is idle again
}

// Packets is the cost of sending a datagram from a pod, to a ClusterIP or directly to the endpoint.
type Packets struct {
	First       Cost `json:"first"` // first packet of a flow
	DirectFirst Cost `json:"directFirst"`
	Later       Cost `json:"later"` // a later packet of a flow without replies
	Direct      Cost `json:"direct"`
	// Answered is a later packet of a flow with a reply. Results before it was measured have 0.
	Answered Cost `json:"answered,omitempty"`
}

// Flows is the cost of kube-ipvs flows for connections with one datagram each.
type Flows struct {
	// Opening is the cost of opening one of the Opened connections, as fast as possible, while the command runs on the same CPU. The
	// command then printed Printed connections, with the cost Print for each, and Losses times that events were lost.
	Opened  int  `json:"opened"`
	Opening Cost `json:"opening"`
	Printed int  `json:"printed"`
	Print   Cost `json:"print"`
	Losses  int  `json:"losses"`
	// Buffered is the number of events that the kernel keeps while the command is stopped.
	Buffered int `json:"buffered"`
}

type (
	// Seconds on the guest's clock.
	Seconds float64
	// Milliseconds on the guest's clock.
	Milliseconds float64
	// Megabytes are 1<<20 bytes.
	Megabytes float64
	// Percent of the CPU.
	Percent float64
	// Cost is in nanoseconds on the guest's clock. Its CPU executes one instruction per nanosecond.
	Cost float64
)

// InSeconds converts a duration.
func InSeconds(d time.Duration) Seconds { return Seconds(d.Seconds()) }

// InMilliseconds converts a duration.
func InMilliseconds(d time.Duration) Milliseconds {
	return Milliseconds(float64(d) / float64(time.Millisecond))
}
