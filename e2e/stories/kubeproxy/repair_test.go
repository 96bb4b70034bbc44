package kubeproxy

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

// show is a command whose output differs until the damage is repaired.
var damages = []struct{ name, script, show string }{
	{"ipvsadm -C", "ipvsadm -C", "ipvsadm -Sn"},
	{"iptables -t nat -F", "iptables -w -t nat -F", "iptables-save -t nat | grep ^-A"},
	{"ipset flush", "ipset flush", "ipset save"},
	{"ip link del kube-ipvs0", "ip link del kube-ipvs0", "ip -o -4 addr show dev kube-ipvs0 | wc -l"},
	{"ip addr flush dev kube-ipvs0", "ip addr flush dev kube-ipvs0", "ip -o -4 addr show dev kube-ipvs0 | wc -l"},
	{"a virtual server deleted", "ipvsadm -D $(ipvsadm -Sn | awk '/^-A -t/ {print $2, $3; exit}')", "ipvsadm -Sn"},
	{"a jump removed", "iptables -w -t nat -D POSTROUTING 1", "iptables-save -t nat | grep ^-A"},
	{"a sysctl", "echo 0 >/proc/sys/net/ipv4/vs/conntrack", "cat /proc/sys/net/ipv4/vs/conntrack"},
}

// unsteady matches what differs between two syncs of kube-proxy: two Services claim these external IPs.
const unsteady = `203\.0\.113\.200|2001:db8:cb::c8`

// The times are only logged, because they depend on the machine's load. Damage that is not repaired is not repeated: it would be the state to
// restore.
func TestRepairTimes(t *testing.T) {
	labtest.Need(t)
	w := newWorld(t)
	w.findKubeProxy(t)
	w.startAPI(t, w.manifests()...)
	w.startOurs(t)
	w.syncPeriod = "30s"
	w.startTheirs(t)
	for range 2 {
		w.settle(t)
	}
	for _, d := range damages {
		t.Run(d.name, func(t *testing.T) {
			ours, theirs := &repairs{}, &repairs{}
			for i := range cluster.Size(1, 20) {
				if i > 0 { // the agent backs off when the same state is damaged repeatedly
					w.restartOurs(t)
				}
				// The agent checks once a second, and kube-proxy every 30 seconds: damage at moments spread evenly over both.
				time.Sleep(time.Duration(i) * 1550 * time.Millisecond)
				w.both(func(s *side) string {
					r := map[*side]*repairs{w.ours: ours, w.theirs: theirs}[s]
					if r.failed == nil {
						r.add(s.repairs(d.script, d.show))
					}
					return ""
				})
			}
			t.Attr("figure", "kube-ipvs: "+ours.String())
			t.Attr("figure", "kube-proxy: "+theirs.String())
			if ours.failed != nil {
				t.Error("kube-ipvs did not repair everything:", ours)
			}
		})
	}
}

// repairs are the results of repeated damage of one kind.
type repairs struct {
	took   []time.Duration
	failed error
}

func (r *repairs) add(took time.Duration, err error) {
	r.took, r.failed = append(r.took, took), err
}

func (r *repairs) String() string {
	if r.failed != nil {
		return fmt.Sprintf("not repaired within %v, at attempt %d: %s", r.took[len(r.took)-1].Round(time.Second), len(r.took),
			strings.Join(strings.Fields(r.failed.Error()), " "))
	}
	slices.Sort(r.took)
	return fmt.Sprintf("repaired after %v (median), %v (longest of %d)", r.took[len(r.took)/2].Round(10*time.Millisecond),
		r.took[len(r.took)-1].Round(10*time.Millisecond), len(r.took))
}

func (w *world) restartOurs(t *testing.T) {
	t.Helper()
	if err := w.ours.process.Stop(patience); err != nil {
		t.Errorf("stop the agent: %v", err)
	}
	w.startOurs(t)
	w.ours.process.AwaitLog(t, patience, "initial sync complete")
}

func (s *side) repairs(script, show string) (time.Duration, error) {
	state := func() string {
		out, _ := s.node.Run("sh", "-c", "("+show+") | grep -vE '"+unsteady+"' | sort") // the device may not exist
		return out
	}
	before := state()
	if _, err := s.node.Run("sh", "-ec", script); err != nil {
		return 0, err
	}
	began := time.Now()
	for time.Since(began) < time.Minute {
		if state() == before {
			return time.Since(began), nil
		}
		time.Sleep(max(50*time.Millisecond, time.Since(began)/20))
	}
	return time.Since(began), fmt.Errorf("the state still differs: %s", cmp.Diff(strings.Split(before, "\n"), strings.Split(state(), "\n")))
}
