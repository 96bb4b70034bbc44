package model

import "slices"

// Scheduler is an IPVS scheduler: an algorithm that selects the destination of a new connection. Its kernel module,
// ip_vs_<name>, may be missing on a node.
type Scheduler struct {
	Name string
	// Flags are the names of the kernel's scheduler flags 1 and 2 for this scheduler.
	Flags        []string
	DefaultFlags SchedulerFlags
	// IgnoresWeights is true if the scheduler treats all weights except 0 equally. Weighted is the variant that uses
	// weights, or "" if there is none.
	IgnoresWeights bool
	Weighted       string
	// CountsWeights is true if the scheduler interprets a weight as a number of open connections, not as a share.
	CountsWeights bool
	// CountsDown is true if the scheduler counts down from the largest weight to find an endpoint, and scans all
	// endpoints at each step. This is slow while the endpoints with the largest weights are at their connection
	// limit.
	CountsDown bool
	// TableKiB is the size of the table that a kernel with the default configuration allocates for each virtual server.
	TableKiB int
	Advice   string
}

// LastResort is the scheduler that a node uses if its kernel lacks the configured one.
const LastResort = "rr"

// SchedulerFlags is a set of flags: bit n is the kernel's scheduler flag n+1.
type SchedulerFlags uint8

const byAddress = "chooses by the destination address, which is the same for all clients of a Service: "

var schedulers = []Scheduler{
	{Name: "rr", IgnoresWeights: true, Weighted: "wrr"},
	{Name: "wrr", CountsDown: true},
	{Name: "lc", IgnoresWeights: true, Weighted: "wlc"},
	{Name: "wlc"},
	{Name: "fo"},
	{Name: "ovf", CountsWeights: true},
	{Name: "lblc", CountsWeights: true, TableKiB: 16, Advice: byAddress + "one endpoint gets all connections until their number exceeds its weight"},
	{Name: "lblcr", CountsWeights: true, TableKiB: 16, Advice: byAddress + "one endpoint gets all connections until their number exceeds its weight"},
	{Name: "dh", IgnoresWeights: true, TableKiB: 2, Advice: byAddress + "one endpoint gets all connections, and they are refused while it drains"},
	// Its table includes endpoints with weight 0. Without fallback, connections are refused if the client hashes to an
	// endpoint that is draining or at its connection limit.
	{Name: "sh", TableKiB: 2, Flags: []string{"sh-fallback", "sh-port"}, DefaultFlags: 1 << 0},
	// Its table excludes endpoints with weight 0, but not endpoints at their connection limit.
	{Name: "mh", TableKiB: 32, Flags: []string{"mh-fallback", "mh-port"}, DefaultFlags: 1<<0 | 1<<1},
	{Name: "sed"},
	{Name: "nq"},
	{Name: "twos"},
}

// Schedulers contains the names of all schedulers.
var Schedulers = func() []string {
	names := make([]string, len(schedulers))
	for i, s := range schedulers {
		names[i] = s.Name
	}
	return names
}()

// KnownScheduler reports whether the name is one of Schedulers.
func KnownScheduler(name string) bool { return slices.Contains(Schedulers, name) }

// SchedulerNamed returns a scheduler by name. It assumes that an unknown scheduler has no flags and uses weights.
func SchedulerNamed(name string) Scheduler {
	if i := slices.Index(Schedulers, name); i >= 0 {
		return schedulers[i]
	}
	return Scheduler{Name: name}
}
