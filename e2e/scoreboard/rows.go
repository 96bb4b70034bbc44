package scoreboard

// Row is one promise and the tests that measure it.
type Row struct {
	Name, Title string
	Full        string // what the whole measurement asks for
	Probes      []Probe
	Env         []string // settings of the full size
	Figures     string   // regular expression for the lines of the tests' logs that are published
	Contrast    string   // the case of the conformance page in which kube-proxy was measured
	Peer        string   // why kube-proxy has no figure
	Missing     string   // what no test measures
}

// Probe runs existing tests.
type Probe struct {
	Kind    Kind
	Package string
	Tests   string // regular expression for go test -run
	Args    []string
}

// Kind is how a probe runs.
type Kind string

// The kinds of probes.
const (
	Go    Kind = "go test"  // with the fake kernel or none
	Story Kind = "make e2e" // real packets, a real kernel
	Fuzz  Kind = "fuzz"     // every fuzz target below the package
)

const (
	services = "./e2e/stories/services"
	coexist  = "./e2e/stories/coexist"
)

// Rows are in the order of the page.
var Rows = []Row{
	{
		Name: "R1", Title: "the agent is killed after every single write of its start, under open connections",
		Full:    "every write of a start with changed Services, with 60 connections, and of a start on an empty node",
		Probes:  []Probe{{Kind: Story, Package: services, Tests: "^TestKill9$"}},
		Env:     []string{"KUBE_IPVS_KILLS=all"},
		Figures: `^kills after up to \d+ writes`, Peer: "not measured",
	},
	{
		Name: "R2", Title: "the agent is replaced by another under load",
		Full: "20 upgrades and downgrades between two versions",
		Probes: []Probe{
			{Kind: Story, Package: services, Tests: "^TestGaps$/^the_agent_restarts_under_load"},
			{Kind: Go, Package: "./internal/agent", Tests: "^(TestUpgradeEditsNoServer|TestRestartWithAnyConfiguration)$"},
		},
		Peer: "not measured", Missing: "there is no older release, so the same version replaces itself",
	},
	{
		Name: "R3", Title: "handover from kube-proxy to kube-ipvs and back, under load",
		Full:    "10 handovers, none lost",
		Probes:  []Probe{{Kind: Story, Package: coexist, Tests: "^TestHandover$"}},
		Figures: `requests|walks`, Peer: "takes part", Missing: "repetitions: one handover there and back",
	},
	{
		Name: "R4", Title: "time from damage by another program to its repair",
		Full:    "at most 1 s (median) and 2 s (worst) for whatever notifies or changes a count",
		Probes:  []Probe{{Kind: Story, Package: "./e2e/stories/kubeproxy", Tests: "^TestRepairTimes$"}},
		Figures: `repaired after`, Missing: "medians, and the other damages that `TestRepairs` repairs",
	},
	{
		Name: "R5", Title: "open connections after another program flushes tables",
		Full:    "every kind of flush, survivors published",
		Probes:  []Probe{{Kind: Story, Package: coexist, Tests: "^TestOthersFlush$"}},
		Figures: `^open connections|^everything was restored`, Peer: "not measured",
	},
	{
		Name: "R6", Title: "every kernel operation of a scenario fails once, with each error number, with and without effect",
		Full:    "no wrong deletion, and convergence",
		Probes:  []Probe{{Kind: Go, Package: "./internal/agent", Tests: "^(TestEveryCallFails|TestFaultsAffectOneObject|TestCrash)$", Args: []string{"-seeds=60"}}},
		Figures: `^\d+ injections|^killed at`, Peer: "not measured: it has no such fake",
	},
	{
		Name: "R7", Title: "random changes while one kernel call in ten fails",
		Full:    "1,000,000 changes",
		Probes:  []Probe{{Kind: Go, Package: "./internal/agent", Tests: "^TestRandomChangesConverge$", Args: []string{"-seeds=11112"}}},
		Figures: `^\d+ changes`, Peer: "not measured: it has no such fake",
	},
	{
		Name: "R8", Title: "the state of kube-ipvs and of kube-proxy for the same random clusters",
		Full:    "5,000 clusters, no unexplained difference",
		Probes:  []Probe{{Kind: Story, Package: "./e2e/differential", Tests: "^TestDifferential$"}},
		Figures: `batches with`, Peer: "is the reference", Missing: "this many clusters; `make differential` draws 2,100 Services",
	},
	{
		Name: "R9", Title: "cost of a cold start, of a start with nothing to change, and of one endpoint",
		Full:    "10,000 Services",
		Probes:  []Probe{{Kind: Story, Package: "./e2e/stories/scale", Tests: "^TestCostFollowsTheChange$"}},
		Figures: `operations in`, Peer: "[performance](performance.md)",
	},
	{
		Name: "R10", Title: "faults of the API server: 410, 429, 5xx, silence, truncated and slow responses, flapping, empty lists, old versions",
		Full:    "20 modes, nothing deleted, each noticed and survived",
		Probes:  []Probe{{Kind: Go, Package: "./internal/watch", Tests: "^(TestAPIFaults|TestRestoredAPIServer)$"}},
		Figures: `recovered after`, Peer: "not measured",
	},
	{
		Name: "R11", Title: "the same slices in any order give the same state",
		Full:   "1,000,000 orders",
		Probes: []Probe{{Kind: Go, Package: "./internal/watch", Tests: "^(TestEveryHistoryEndsInTheSameModel|TestReorderedEventsGiveTheSameModel)$"}},
		Peer:   "not measured", Missing: "this many orders: some hundreds are drawn",
	},
	{
		Name: "R12", Title: "fuzzing of everything that parses bytes of others",
		Full:    "1,000,000 inputs for each target, no failure",
		Probes:  []Probe{{Kind: Fuzz, Package: "./internal/..."}},
		Figures: `inputs`, Peer: "has no fuzz targets for this",
	},
	{
		Name: "R13", Title: "UDP clients move when the only server is replaced",
		Full:   "silence of at most 100 ms (99th percentile)",
		Probes: []Probe{{Kind: Story, Package: services, Tests: "^TestFlows$/^UDP_clients_move_when_the_server_is_replaced$"}},
		Peer:   "not measured", Missing: "the length of the silence",
	},
	{
		Name: "R14", Title: "endpoints drain: connections go on, and the destination leaves with the last",
		Full:   "1,000 connections, 50 removals",
		Probes: []Probe{{Kind: Story, Package: services, Tests: "^TestDisturbances$/^killed_while_an_endpoint_drains$"}, {Kind: Go, Package: "./internal/agent", Tests: "^TestDrain"}},
		Peer:   "not measured", Missing: "this many connections at once",
	},
	{
		Name: "R15", Title: "clients that reuse a port while its old endpoint drains", Full: "1,000 reused ports, none reaches the removed endpoint",
		Peer: "not measured", Missing: "everything",
	},
	{
		Name: "R16", Title: "Services that claim addresses of nodes, of the API server, of pods and other forbidden ones",
		Full: "none bound",
		Probes: []Probe{
			{Kind: Go, Package: "./internal/compile", Tests: "^(TestHostileServicesReachNothing|TestHostileNodesTakeNothingAway|TestPodRangesAreOutOfReach)$"},
			{Kind: Story, Package: services, Tests: "^TestNodeAddressAsClusterIP$"},
		},
		Contrast: "another node's address",
	},
	{
		Name: "R17", Title: "several Services claim one address and port",
		Full:     "10,000 sequences, always the same winner",
		Probes:   []Probe{{Kind: Go, Package: "./internal/compile", Tests: "^(TestClaimsPassToTheNextBest|TestResultIsIndependentOfHistory|TestLostClaimBindsNothing)$"}},
		Contrast: "two Services claim one address", Missing: "this many sequences: some hundreds are drawn",
	},
	{
		Name: "R18", Title: "the agent has exactly the capabilities of the chart, in all stories",
		Full:   "every other system call and right is refused",
		Probes: []Probe{{Kind: Story, Package: "./e2e/stories/image", Tests: "^TestContain$"}},
		Peer:   "its usual manifest is privileged", Missing: "a trial of each refused call",
	},
	{
		Name: "R19", Title: "ports of the node's own programs are closed at the addresses of Services, from the first instant",
		Full:     "a sample of 65,535 ports, none open",
		Probes:   []Probe{{Kind: Story, Package: services, Tests: "^TestLoadBalancer$/^the_node's_own_ports_are_closed_from_the_first_instant"}},
		Contrast: "host ports from the first instant", Missing: "a sample of all ports: a few are tried",
	},
	{
		Name: "R20", Title: "two agents, or an agent and kube-proxy, on one node",
		Full:   "60 s together, none lost, reported",
		Probes: []Probe{{Kind: Story, Package: coexist, Tests: "^(TestTwoAgents|TestBesideKubeProxy)$"}},
		Peer:   "takes part", Missing: "60 s together",
	},
	{
		Name: "R21", Title: "goroutines, file descriptors and memory over R7", Full: "no growth",
		Peer: "not measured", Missing: "descriptors and memory over time; every test of the agent fails if a goroutine is left over",
	},
	{
		Name: "R22", Title: "race detector, random order of tests",
		Full:   "no race",
		Probes: []Probe{{Kind: Go, Package: "./internal/agent", Tests: ".", Args: []string{"-race", "-short", "-shuffle=on"}}},
		Peer:   "not measured",
	},
}
