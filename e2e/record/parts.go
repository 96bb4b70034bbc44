package record

import (
	"fmt"
	"slices"
	"strings"
)

// Part is a group of long tests. Nothing else runs at the same time. A part takes at most two hours,
// or it can be resumed.
type Part struct {
	Name    string
	Proves  string
	Targets []string // the arguments of each make command
	Minutes int      // measured on two cores; decides how many parts fit into a night
	Resumes bool     // targets keep their progress in OUT and continue when started again
}

const counted = " LAB=qemu LAB_ACCEL=counted LAB_CPUS=1 KERNEL="

const (
	benchProves     = "times, memory and CPU"
	ours            = "bench-peers CASES=kube-ipvs%/" // and the number of Services
	eachKind        = "e2e PKG='./e2e/stories/services:TestClusterIP|TestNodePort|TestLoadBalancer|TestExternalIPs'"
	kubernetesParts = "kubernetes-" // and a minor version of Kubernetes
)

// theirs names the cases of all modes. The Makefile omits those that take too long.
func theirs(which string) string {
	return fmt.Sprintf("bench-peers CASES='iptables/%[1]s ipvs/%[1]s nftables/%[1]s'", which)
}

// onKubernetes tests with a version of Kubernetes. A virtual clock stands still while an API server of 1.33 or 1.34 runs: two of its
// goroutines never wait, because StartEventWatcher of their client-go keeps reading a closed channel.
func onKubernetes(version string) Part {
	minor := version[:strings.LastIndex(version, ".")]
	return Part{
		kubernetesParts + minor, "installation of the chart, each kind of Service, and DNS on nodes with kubelets of Kubernetes " + minor,
		[]string{
			"chart-test RUN='^TestInstall$' KUBERNETES=" + version, eachKind + " LAB=uml LAB_CLOCK=skipping KUBERNETES=" + version,
			"cluster-test RUN='^Test(Install|DNS)$' KUBERNETES=" + version,
		}, 15, false,
	}
}

// kubernetes returns the version of Kubernetes that a run tested.
func (l *Line) kubernetes() string {
	_, version, _ := strings.Cut(strings.Join(l.Targets, " "), "KUBERNETES=")
	return strings.Fields(version + " unknown")[0]
}

// Parts lists all parts. $SEED stands for the run's seed.
var Parts = []Part{
	{"page", "the page of the command ui in headless Chromium", []string{"page-test"}, 1, false},
	{"windows", "the agent for Windows, and the unit tests of its data plane, under Debian's Wine", []string{"windows-test"}, 2, false},
	{"firewalls", "explain and doctor agree with real packets beside Debian's ufw, firewalld and docker", []string{"firewalls-test"}, 3, false},
	{"new-node", "how soon a new node works in a cluster with 5,000 Services", []string{"new-node"}, 5, false},
	{"kills", "the agent is killed after each write at startup, while connections are open, on a real clock", []string{"kills"}, 8, false},
	{"gate", "make test, with different random examples", []string{"test RAPID_SEED=$SEED"}, 13, false},
	{"broken", "the tests notice each defect introduced by e2e/broken", []string{"broken"}, 12, false},
	{"kernel-5.10", "every kernel test on Debian's 5.10", []string{"kernel-test PKG=./internal/..." + counted + "5.10"}, 10, false},
	{"kernel-6.1", "every kernel test on Debian's 6.1", []string{"kernel-test PKG=./internal/..." + counted + "6.1"}, 10, false},
	{"kernel-6.12", "every kernel test on Debian's 6.12", []string{"kernel-test PKG=./internal/..." + counted + "6.12"}, 10, false},
	{"stories-no-ipset", "each kind of Service on Debian's 6.12, which may load neither ipset nor modules of iptables", []string{
		eachKind + " API=small RULES=nftables LAB_WITHOUT=ip_set,x_tables" + counted + "6.12",
	}, 10, false},
	{"stories-5.10", "each kind of Service on Debian's 5.10", []string{eachKind + " API=small" + counted + "5.10"}, 10, false},
	{"stories-6.1", "every story on Debian's 6.1", []string{"stories" + counted + "6.1"}, 40, false},
	{"stories-6.12", "every story on Debian's 6.12", []string{"stories" + counted + "6.12"}, 40, false},
	{"kubeproxy", "known kube-proxy bugs, tested on kube-proxy and on kube-ipvs", []string{"e2e PKG=./e2e/stories/kubeproxy" + counted + "6.1"}, 15, false},
	{"scale", "memory, latency and cost with thousands of Services, and guards in user space, on a real clock", []string{
		"e2e PKG=./e2e/stories/scale LAB=uml",
		"e2e PKG='./e2e/stories/services:TestGaps|TestGuards' DATA_PLANE=userspace API=small LAB=uml",
	}, 5, false},
	{"churn", "200 changes a second among 10,000 Services, with nftables: ten minutes, and an hour on the virtual clock", []string{
		"e2e PKG=./e2e/stories/scale:TestChurn DATA_PLANE=nftables LAB=uml TIMEOUT=0 KUBE_IPVS_CHURN=10m",
		"e2e PKG=./e2e/stories/scale:TestChurn DATA_PLANE=nftables LAB=uml LAB_CLOCK=virtual TIMEOUT=0 LAB_HOST_LIMIT=2h KUBE_IPVS_CHURN=1h",
	}, 50, false},
	{"repairs", "how soon kube-ipvs and kube-proxy repair what another program damaged", []string{"scoreboard ROWS=R4"}, 15, false},
	{"scoreboard", "promises of the scoreboard in full size", []string{
		"scoreboard ROWS=R2", "scoreboard ROWS=R3", "scoreboard ROWS=R11", "scoreboard ROWS=R13",
		"scoreboard ROWS=R14", "scoreboard ROWS=R15", "scoreboard ROWS=R17", "scoreboard ROWS=R18", "scoreboard ROWS=R19", "scoreboard ROWS=R20",
		"scoreboard ROWS=R21", "scoreboard ROWS=R22 SEED=$SEED",
	}, 30, false},
	{"week-nftables", "a random week in the life of a node without IPVS", []string{"week SEED=$SEED DATA_PLANE=nftables"}, 40, false},
	{"week", "a random week in the life of a node", []string{"week SEED=$SEED"}, 30, false},
	{"fuzz", "fuzzing of everything that parses other programs' bytes", []string{"fuzz FUZZTIME=1000000x"}, 110, false},
	{"faults", "each kernel call fails with each error, and one call in ten fails during random changes", []string{"faults ROUNDS=186"}, 35, false},
	{"lab", "the lab itself, in user-mode Linux and on Debian's 6.1", []string{"lab-test LAB=uml", "lab-test LAB=qemu KERNEL=6.1"}, 5, false},
	{"release", "all files of a release, built twice, and the deb package on a booted system", []string{"release-test"}, 12, false},
	{"cluster", "install, upgrade, failures and removal on real kubelets", []string{"cluster-test"}, 10, false},
	onKubernetes("1.33.13"),
	onKubernetes("1.34.4"),
	onKubernetes("1.35.4"),
	onKubernetes("1.36.3"),
	onKubernetes("1.37.2"),
	{"kubernetes", "Kubernetes' own tests of Services", []string{"k8s-e2e NODES=6 ZONES=3"}, 90, true},
	{"bench-100", benchProves + " with 100 Services", []string{ours + "100"}, 5, true},
	{"bench-1000", benchProves + " with 1,000 Services", []string{ours + "1000"}, 15, true},
	{"bench-packets", "cost of a packet, compared with kube-proxy, kube-router and IPVS without a proxy", []string{"bench-peers CASES=%/packets"}, 45, true},
	{"bench-storms", "CPU of many changes at once", []string{"bench-peers CASES=kube-ipvs/1000/storms"}, 10, true},
	{"bench-5000", benchProves + " with 5,000 Services", []string{ours + "5000"}, 10, true},
	{"bench-10000", benchProves + " with 10,000 Services", []string{ours + "10000"}, 40, true},
	{"bench-50000", benchProves + " with 50,000 Services", []string{ours + "50000"}, 60, true},
	// The results of other projects do not change with this one, so they are measured less often.
	{"peers-100", benchProves + " of kube-proxy with 100 Services", []string{theirs("100")}, 10, true},
	{"peers-1000", benchProves + " of kube-proxy with 1,000 Services", []string{theirs("1000")}, 30, true},
	{"peers-storms", "CPU of kube-proxy during many changes at once", []string{theirs("1000/storms")}, 30, true},
	{"peers-5000", benchProves + " of kube-proxy with 5,000 Services", []string{theirs("5000")}, 120, true},
	{"peers-10000-iptables", benchProves + " of kube-proxy's iptables mode with 10,000 Services", []string{"bench-peers CASES=iptables/10000"}, 120, true},
	{"peers-10000-ipvs", benchProves + " of kube-proxy's ipvs mode with 10,000 Services", []string{"bench-peers CASES=ipvs/10000"}, 120, true},
	{"peers-10000-nftables", benchProves + " of kube-proxy's nftables mode with 10,000 Services", []string{"bench-peers CASES=nftables/10000"}, 120, true},
	{"peers-kube-router", benchProves + " of kube-router with 100 Services", []string{"bench-peers CASES=kube-router/100"}, 60, true},
	{"data-planes", "random objects with IPVS and with nftables", []string{"data-planes KUBE_IPVS_DIFFERENTIAL_SEED=$SEED"}, 15, false},
	{"differential", "random objects, compared with the real kube-proxy", []string{"differential KUBE_IPVS_DIFFERENTIAL_SEED=$SEED"}, 60, true},
}

// Named returns a part by its name, and whether it exists.
func Named(name string) (Part, bool) {
	i := slices.IndexFunc(Parts, func(p Part) bool { return p.Name == name })
	if i < 0 {
		return Part{}, false
	}
	return Parts[i], true
}

// Names lists the names of all parts.
func Names() string {
	var names []string
	for _, p := range Parts {
		names = append(names, p.Name)
	}
	return strings.Join(names, ", ")
}
