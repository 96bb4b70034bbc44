package coexist

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// othersRules runs another program's script once for each family. In the script, ipt is the family's iptables, and
// V is 4 or 6. PODS is the cluster's pod range, HERE is the node's pod range, and CLIENT and WEB are addresses of
// pods.
func (w *world) othersRules(t *testing.T, node *cluster.Node, script string, families ...cluster.Family) {
	t.Helper()
	for _, f := range families {
		saved := node.MustRun(t, saveProgram(f))
		t.Cleanup(func() { restore(t, node, f, saved) })
		w.shell(t, node, f, script)
	}
}

// collect combines all ipt calls into one iptables-restore run: one process per call would take minutes on an emulated machine.
const collect = `
ipt() {
	table=filter
	if [ "$1" = -t ]; then table=$2; shift 2; fi
	case $1 in
	-N) echo ":$2 -" ;;
	-P) echo ":$2 $3" ;;
	*) echo "$*" ;;
	esac >>$RULES/$table
}
`

const restoreCollected = `
for table in raw mangle nat filter; do
	[ -s $RULES/$table ] || continue
	echo "*$table"
	grep ^: $RULES/$table || :
	grep -v ^: $RULES/$table || :
	echo COMMIT
done >$RULES/all
$RESTORE -w --noflush <$RULES/all
`

func (w *world) shell(t *testing.T, node *cluster.Node, f cluster.Family, script string) {
	t.Helper()
	if _, err := w.tryShell(node, f, t.TempDir(), collect+script+restoreCollected); err != nil {
		t.Fatal(err)
	}
}

func (w *world) tryShell(node *cluster.Node, f cluster.Family, dir, script string) (string, error) {
	ranges := strings.Split(podCIDRs, ",")
	pods, here, multicast := ranges[0], node.PodCIDR.V4, "224.0.0.0/4"
	if f == cluster.V6 {
		pods, here, multicast = ranges[1], node.PodCIDR.V6, "ff00::/8"
	}
	return node.RunCommand(cluster.Command{Args: []string{"sh", "-ec", script}, Env: append(os.Environ(),
		"RULES="+dir, "RESTORE="+restoreProgram(f), "PODS="+pods, "HERE="+here.String(), "NODE="+node.Addr(f).String(),
		"CLIENT="+w.client.Addr(f).String(), "WEB="+w.near.Addr(f).String(), "MULTICAST="+multicast, fmt.Sprintf("V=%d", f))})
}

func saveProgram(f cluster.Family) string {
	return map[cluster.Family]string{cluster.V4: "iptables-save", cluster.V6: "ip6tables-save"}[f]
}

func restoreProgram(f cluster.Family) string {
	return map[cluster.Family]string{cluster.V4: "iptables-restore", cluster.V6: "ip6tables-restore"}[f]
}

var builtin = map[string][]string{
	"raw":    {"PREROUTING", "OUTPUT"},
	"mangle": {"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"},
	"nat":    {"PREROUTING", "INPUT", "OUTPUT", "POSTROUTING"},
	"filter": {"INPUT", "FORWARD", "OUTPUT"},
}

// restore also empties tables that did not exist before.
func restore(t *testing.T, node *cluster.Node, f cluster.Family, saved string) {
	t.Helper()
	for table, chains := range builtin {
		if strings.Contains(saved, "*"+table+"\n") {
			continue
		}
		saved += "*" + table + "\n"
		for _, chain := range chains {
			saved += ":" + chain + " ACCEPT\n"
		}
		saved += "COMMIT\n"
	}
	if _, err := node.RunCommand(cluster.Command{Args: []string{restoreProgram(f), "-w"}, Stdin: saved}); err != nil {
		t.Errorf("restore the rules: %v", err)
	}
}
