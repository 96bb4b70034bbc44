package coexist

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

type havoc struct {
	name    string
	script  string
	refused bool // the kernel refuses the script
	// ends is true if connections through IPVS break because the kernel drops its connection entries.
	ends bool
}

var havocs = []havoc{
	{name: "iptables -F and -X in every table", script: `
for ipt in iptables ip6tables; do for table in filter nat mangle; do $ipt -w -t $table -F; $ipt -w -t $table -X; done; done`},
	{name: "nft flush ruleset", script: "nft flush ruleset"},
	{name: "only the jumps are deleted", script: `
for ipt in iptables ip6tables; do for table in filter nat mangle; do
	$ipt-save -t $table | grep -v -- '^-A [A-Z]* .*kube-ipvs:.*-j KUBE-\|^-A [A-Z]* -j KUBE-' >$0.$$ || :
	$ipt-restore -w -T $table <$0.$$
done; done; rm $0.$$`},
	{name: "ipset flush", script: "ipset flush"},
	{name: "ipset destroy of a set that rules match", script: "ipset destroy KIPVS-4-CLUSTER-IP", refused: true},
	{name: "ipset destroy of the ledger, which no rule matches", script: `
ipset destroy KIPVS-4-LEDGER; ipset destroy KIPVS-6-LEDGER`},
	{name: "ip addr flush dev kube-ipvs0", script: "ip addr flush dev kube-ipvs0"},
	{name: "ip link del kube-ipvs0", script: "ip link del kube-ipvs0"},
	{name: "ipvsadm -C", script: "ipvsadm -C", ends: true},
}

// showOurTables omits the raw table, because the agent does not restore the rules that earlier tests added there.
var showOurTables = []string{
	"ipvsadm -Sn", "ipset save", "ip -o addr",
	"iptables-save -t filter", "iptables-save -t nat", "iptables-save -t mangle",
	"ip6tables-save -t filter", "ip6tables-save -t nat", "ip6tables-save -t mangle",
}

const period = 2 * time.Second

func TestOthersFlush(t *testing.T) {
	w := onWorld(t)
	cluster.NeedPauses(t)
	w.restartAgent(t, w.node1, "--ipvs-sync-period", period.String())
	w.repaired(t, w.node1, w.nearService())
	before := dump(t, w.node1, showOurTables)
	for _, h := range havocs {
		t.Run(h.name, func(t *testing.T) {
			far := w.farService()
			flows := w.client.OpenFlows(t, 4, cluster.TCP, far.at(cluster.V4, http), cluster.FlowConfig{Within: patience})
			flows.AwaitRound(t, patience)
			silence := cluster.Within(cluster.DefaultSilence)
			watching := []*watcher{
				watch(t, path{w.client.Host, cluster.TCP, far.at(cluster.V4, http), "web-2", w.client.V4}, silence),
				watch(t, path{w.outside, cluster.TCP, far.atNode(cluster.V6, http, w.node1), "web-2", w.node1.V6}, silence),
				watch(t, path{w.outside, cluster.TCP, w.localService().atBalancer(cluster.V4, http), "web-1", w.outside.V4}, silence),
			}
			restored := w.comparing(t, before)
			began := time.Now()
			_, err := w.node1.Run("sh", "-ec", h.script, t.TempDir()+"/rules")
			if (err != nil) != h.refused {
				t.Fatalf("want the kernel to refuse the script: %t; the script returned %v", h.refused, err)
			}
			cluster.Eventually(t, 2*patience, "everything is restored", restored)
			took := time.Since(began)
			for _, s := range watching {
				t.Logf("%s", s.end())
			}
			t.Attr("figure", fmt.Sprintf("everything was restored %s after %s", took.Round(100*time.Millisecond), h.name))
			if h.ends {
				t.Attr("figure", fmt.Sprintf("open connections: %s", flows.Stop().Summary()))
			} else {
				flows.AwaitRound(t, patience)
				flows.MustBeUnharmed(t)
			}
			w.mustPass(t, cluster.V4, cluster.V6)
		})
	}
}

// comparing returns a function that compares node1's kernel state with before. It first runs the command whose
// output differed last time, because running every command is slow.
func (w *world) comparing(t *testing.T, before map[string][]string) func() error {
	commands := slices.Clone(showOurTables)
	return func() error {
		for i, command := range commands {
			if err := differs(command, before[command], dump(t, w.node1, []string{command})[command]); err != nil {
				commands[0], commands[i] = command, commands[0]
				return err
			}
		}
		return nil
	}
}

// differs ignores the order of lines, and link numbers, which change when kube-ipvs0 is recreated.
func differs(command string, had, now []string) error {
	if a, b := unordered(had), unordered(now); !slices.Equal(a, b) {
		return fmt.Errorf("%s printed\n%s\nbut now prints\n%s", command, strings.Join(a, "\n"), strings.Join(b, "\n"))
	}
	return nil
}

func unordered(dumped []string) []string {
	var all []string
	for _, line := range dumped {
		all = append(all, strings.TrimLeft(line, "0123456789"))
	}
	slices.Sort(all)
	return all
}

type watcher struct {
	path   path
	within cluster.DialOption
	stop   chan struct{}
	once   sync.Once
	done   sync.WaitGroup

	walked   int
	problems []error
	first    time.Time
	last     time.Time
}

func watch(t *testing.T, p path, within cluster.DialOption) *watcher {
	t.Helper()
	w := &watcher{path: p, within: within, stop: make(chan struct{})}
	w.done.Go(w.run)
	t.Cleanup(func() { w.end() })
	return w
}

func (w *watcher) run() {
	pause := time.NewTicker(20 * time.Millisecond)
	defer pause.Stop()
	for {
		began := time.Now()
		r := w.path.from.Probe(w.path.proto, w.path.to, w.within)
		w.walked++
		if err := w.path.judge(r); err != nil {
			if len(w.problems) == 0 {
				w.first = began
			}
			w.problems, w.last = append(w.problems, err), time.Now()
		}
		select {
		case <-w.stop:
			return
		case <-pause.C:
		}
	}
}

func (w *watcher) end() string {
	w.once.Do(func() { close(w.stop) })
	w.done.Wait()
	name := fmt.Sprintf("%s -> %s", w.path.from.Name, w.path.to)
	if len(w.problems) == 0 {
		return fmt.Sprintf("%s: %d requests, all correct", name, w.walked)
	}
	return fmt.Sprintf("%s: %d of %d requests went wrong within %s: %v", name, len(w.problems), w.walked,
		w.last.Sub(w.first).Round(100*time.Millisecond), w.problems[0])
}
