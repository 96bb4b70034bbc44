package model

import "slices"

// Scheduler is one way in which IPVS shares out connections. A kernel module ip_vs_<name> goes with each; whether this node has
// it is seen when it is first used.
type Scheduler struct {
	Name string
	// Flags are the names of its settings, in the order of the kernel's scheduler flags 1 and 2.
	Flags []string
	// Usual are the flags that are set where nobody says otherwise.
	Usual SchedulerFlags
	// IgnoresWeights says that all weights but 0 are the same to it; Weighted is then the scheduler that does the same with
	// weights, if there is one.
	IgnoresWeights bool
	Weighted       string
	// CountsWeights says that a weight is a number of open connections to it, not a share.
	CountsWeights bool
	// Advice is what whoever chooses it for a Service should know; empty for most.
	Advice string
}

// LastResort is the scheduler of a node whose kernel lacks the one that is configured.
const LastResort = "rr"

// SchedulerFlags is a set of a scheduler's settings: bit n is the kernel's scheduler flag n+1.
type SchedulerFlags uint8

const byAddress = "chooses by the address that clients connect to, which is one and the same for a Service: "

// schedulers are those that some kernel has, in the order of the kernel's own menu.
var schedulers = []Scheduler{
	{Name: "rr", IgnoresWeights: true, Weighted: "wrr"},
	{Name: "wrr"},
	{Name: "lc", IgnoresWeights: true, Weighted: "wlc"},
	{Name: "wlc"},
	{Name: "fo"},
	{Name: "ovf", CountsWeights: true},
	{Name: "lblc", CountsWeights: true, Advice: byAddress + "one endpoint gets all until it has more connections than its weight"},
	{Name: "lblcr", CountsWeights: true, Advice: byAddress + "one endpoint gets all until it has more connections than its weight"},
	{Name: "dh", IgnoresWeights: true, Advice: byAddress + "one endpoint gets all connections, and they are refused while it drains"},
	// Its table has every endpoint, also one of weight 0. Without fallback the clients that hash to one that drains, or is over
	// its limit, are refused.
	{Name: "sh", Flags: []string{"sh-fallback", "sh-port"}, Usual: 1 << 0},
	// Its table has no endpoint of weight 0, but those over their limit.
	{Name: "mh", Flags: []string{"mh-fallback", "mh-port"}, Usual: 1<<0 | 1<<1},
	{Name: "sed"},
	{Name: "nq"},
	{Name: "twos"},
}

// Schedulers are the names of all schedulers.
var Schedulers = func() []string {
	names := make([]string, len(schedulers))
	for i, s := range schedulers {
		names[i] = s.Name
	}
	return names
}()

// KnownScheduler says whether the name is one of Schedulers.
func KnownScheduler(name string) bool { return slices.Contains(Schedulers, name) }

// SchedulerNamed returns what is known of a scheduler. One that is not known has no settings and respects weights.
func SchedulerNamed(name string) Scheduler {
	if i := slices.Index(Schedulers, name); i >= 0 {
		return schedulers[i]
	}
	return Scheduler{Name: name}
}
