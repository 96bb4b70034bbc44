package scoreboard

// Row is a promise and the tests that measure it.
type Row struct {
	Name, Title string
	Full        string // what a complete measurement would cover
	Probes      []Probe
	Contrast    string // case on the conformance page that measures kube-proxy
	Peer        string // why kube-proxy has no figure
	Missing     string // what no test measures
}

// Probe selects tests of a package, or of all packages below it.
type Probe struct {
	Package string
	Tests   string // regular expression of names, including subtests
	Part    string // the part of make nightly that runs them in full size; empty for every part
}

const (
	services = "e2e/stories/services"
	coexist  = "e2e/stories/coexist"
	full     = "scoreboard" // the part that runs tests in the sizes of this page
)

// Rows lists the rows in the order of the page.
var Rows = []Row{
	{
		Name: "R1", Title: "the agent is killed after each write during its start, while connections are open",
		Full:   "every write of two starts: one with 60 connections after Services changed, and one on an empty node",
		Probes: []Probe{{Package: services, Tests: "^TestKill9$", Part: "kills"}},
		Peer:   "not measured",
	},
	{
		Name: "R2", Title: "the agent is upgraded or downgraded under load",
		Full:   "20 upgrades and downgrades between two versions",
		Probes: []Probe{{Package: services, Tests: "^TestCanary$", Part: full}},
		Peer:   "not measured",
	},
	{
		Name: "R3", Title: "handover from kube-proxy to kube-ipvs and back, under load",
		Full:   "10 handovers, no connection lost",
		Probes: []Probe{{Package: coexist, Tests: "^TestHandover$", Part: full}},
		Peer:   "part of the test",
	},
	{
		Name: "R4", Title: "time from damage by another program to its repair",
		Full:   "at most 1 s (median) and 2 s (longest) if the damage causes a notification or changes a count; each kind of damage 20 times",
		Probes: []Probe{{Package: "e2e/stories/kubeproxy", Tests: "^TestRepairTimes$", Part: "repairs"}},
	},
	{
		Name: "R5", Title: "open connections after another program flushes tables",
		Full:   "every kind of flush, with the number of surviving connections; the agent backs off, because the flushes follow each other",
		Probes: []Probe{{Package: coexist, Tests: "^TestOthersFlush$"}},
		Peer:   "not measured",
	},
	{
		Name: "R6", Title: "every kernel operation of a scenario fails once with each error number, whether or not it took effect",
		Full:   "no wrong deletion, and convergence",
		Probes: []Probe{{Package: "internal/agent", Tests: "^(TestEveryCallFails|TestFaultsAffectOneObject|TestCrash)$", Part: "faults"}},
		Peer:   "not measured; kube-proxy has no fake kernel",
	},
	{
		Name: "R7", Title: "random changes while one kernel call in ten fails",
		Full:   "1,000,000 changes",
		Probes: []Probe{{Package: "internal/agent", Tests: "^TestRandomChangesConverge$", Part: "faults"}},
		Peer:   "not measured; kube-proxy has no fake kernel",
	},
	{
		Name: "R8", Title: "the state of kube-ipvs and of kube-proxy for the same random clusters",
		Full:   "5,000 clusters, no unexplained difference",
		Probes: []Probe{{Package: "e2e/differential", Tests: "^TestDifferential$"}},
		Peer:   "the reference", Missing: "5,000 clusters; `make differential` draws 9,000 Services",
	},
	{
		Name: "R9", Title: "cost of a cold start, of a restart with nothing to change, and of one more endpoint",
		Full:   "10,000 Services",
		Probes: []Probe{{Package: "e2e/stories/scale", Tests: "^TestCostFollowsTheChange$"}},
		Peer:   "[performance](performance.md)",
	},
	{
		Name: "R10", Title: "faults of the API server: 410, 429, 5xx, silence, truncated and slow responses, flapping, empty lists, old versions",
		Full:   "20 kinds of faults; each is noticed, and nothing is deleted",
		Probes: []Probe{{Package: "internal/watch", Tests: "^(TestAPIFaults|TestRestoredAPIServer)$"}},
		Peer:   "not measured",
	},
	{
		Name: "R11", Title: "the same slices in any order give the same state",
		Full:   "1,000,000 orders",
		Probes: []Probe{{Package: "internal/watch", Tests: "^(TestEveryHistoryEndsInTheSameModel|TestReorderedEventsGiveTheSameModel)$", Part: full}},
		Peer:   "not measured",
	},
	{
		Name: "R12", Title: "fuzzing of everything that parses other programs' bytes",
		Full:   "1,000,000 inputs for each target, no failure",
		Probes: []Probe{{Package: "internal/...", Tests: "^Fuzz", Part: "fuzz"}},
		Peer:   "not measured; kube-proxy has no such fuzz targets", Missing: "1,000,000 inputs of the slow targets; `make nightly PART=fuzz` measures them, but this result is older",
	},
	{
		Name: "R13", Title: "UDP clients move when the only server is replaced",
		Full:   "silence of at most 100 ms (99th percentile)",
		Probes: []Probe{{Package: services, Tests: "^TestUDPFailover$", Part: full}},
		Peer:   "not measured",
	},
	{
		Name: "R14", Title: "endpoints drain: connections continue, and the destination is removed after the last one",
		Full:   "1,000 connections, 50 removals",
		Probes: []Probe{{Package: services, Tests: "^TestDrain/connections_to_removed_endpoints_continue$", Part: full}},
		Peer:   "not measured",
	},
	{
		Name: "R15", Title: "clients that reuse a port while its old endpoint drains",
		Full:   "1,000 reused ports, none reaches the removed endpoint",
		Probes: []Probe{{Package: services, Tests: "^TestDrain/clients_that_reuse_a_port_while_its_endpoint_drains$", Part: full}},
		Peer:   "not measured",
	},
	{
		Name: "R16", Title: "Services that claim addresses of nodes, the API server or pods, or other forbidden addresses",
		Full: "none bound",
		Probes: []Probe{
			{Package: "internal/compile", Tests: "^(TestHostileServicesReachNothing|TestHostileNodesTakeNothingAway|TestPodRangesAreOutOfReach)$"},
			{Package: services, Tests: "^TestNodeAddressAsClusterIP$"},
		},
		Contrast: "another node's address",
	},
	{
		Name: "R17", Title: "several Services claim one address and port",
		Full: "10,000 sequences, always the same winner",
		Probes: []Probe{
			{Package: "internal/compile", Tests: "^TestResultIsIndependentOfHistory$", Part: full},
			{Package: "internal/compile", Tests: "^(TestClaimsPassToTheNextBest|TestLostClaimBindsNothing)$"},
		},
		Contrast: "two Services claim one address",
	},
	{
		Name: "R18", Title: "the agent has exactly the capabilities of the chart, in all stories",
		Full:   "every other system call and capability is refused",
		Probes: []Probe{{Package: "e2e/stories/image", Tests: "^TestContain$", Part: full}, {Package: "e2e/testbed/contain", Tests: "^TestEachRefusedCall$", Part: full}},
		Peer:   "its usual manifest is privileged",
	},
	{
		Name: "R19", Title: "ports of the node's own programs are always closed on Service addresses, from the first instant",
		Full:     "a sample of 65,535 ports, none open",
		Probes:   []Probe{{Package: services, Tests: "^TestGaps/the_node's_own_ports_are_closed_from_the_first_instant", Part: full}},
		Contrast: "host ports from the first instant",
	},
	{
		Name: "R20", Title: "two agents, or an agent and kube-proxy, on one node",
		Full:   "60 s side by side; no request is lost, and the conflict is reported",
		Probes: []Probe{{Package: coexist, Tests: "^(TestTwoAgents|TestBesideKubeProxy)$", Part: full}},
		Peer:   "part of the test",
	},
	{
		Name: "R21", Title: "goroutines, file descriptors and memory during 1,000,000 changes, on a real kernel",
		Full:   "no growth",
		Probes: []Probe{{Package: "e2e/stories/scale", Tests: "^TestChurn$", Part: full}},
		Peer:   "not measured",
	},
	{
		Name: "R22", Title: "race detector, random order of tests",
		Full:   "no race",
		Probes: []Probe{{Package: "internal/agent", Tests: `^\w+$`, Part: full}},
		Peer:   "not measured",
	},
}
