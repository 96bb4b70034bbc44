package schedulers

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/ipvs"
)

// TestChangesLoseNothing changes every setting while a hundred connections are open. No connection is lost, and no
// virtual server is recreated.
func TestChangesLoseNothing(t *testing.T) {
	w := onWorld(t)
	cluster.NeedPauses(t)
	four := w.backends[8:12]
	s := w.up(t, "changes", "rr", notes{}, four...)
	var flows []*cluster.Flows
	for _, f := range w.FamilyList() {
		flows = append(flows, w.client.OpenFlows(t, 50, cluster.TCP, s.at(f),
			cluster.FlowConfig{Every: time.Second, Within: 20 * time.Second, Max: 10 * time.Minute}))
	}
	made := map[cluster.Family]int{}
	for _, f := range w.FamilyList() {
		made[f] = w.awaitConnections(t, s, f)
	}
	type step struct {
		notes notes
		want  string // expected in the output line of the virtual server or of a destination
	}
	steps := []step{
		{notes{"scheduler": "lc"}, "-s lc"},
		{notes{"scheduler": "wlc", "weight-by-pod": "w9=5"}, "-s wlc"},
		{notes{"scheduler": "wlc", "weight-by-pod": "w9=7,w10=2"}, "-w 7"},
		{notes{"scheduler": "wrr", "weight-by-zone": "zone-b=6"}, "-w 6"},
		{notes{"scheduler": "wrr", "weight-by-node": "node-2=9"}, "-w 9"},
		{notes{"scheduler": "sh"}, "-b sh-fallback"},
		{notes{"scheduler": "sh", "scheduler-flags": "sh-port"}, "-b sh-port"},
		{notes{"scheduler": "mh", "weight-by-pod": "w9=3"}, "-b mh-fallback,mh-port"},
		{notes{"scheduler": "mh", "scheduler-flags": "none"}, "-s mh\n"},
		{notes{"scheduler": "dh"}, "-s dh"}, {notes{"scheduler": "lblc"}, "-s lblc\n"}, {notes{"scheduler": "lblcr"}, "-s lblcr\n"},
		{notes{"scheduler": "sed"}, "-s sed"}, {notes{"scheduler": "nq"}, "-s nq"},
		{notes{"scheduler": "fo"}, "-s fo"}, {notes{"scheduler": "ovf"}, "-s ovf"},
		{notes{"affinity-timeout": "600"}, "-p 600\n"},
		{notes{"affinity-timeout": "700", "affinity-prefix-ipv4": "24", "affinity-prefix-ipv6": "64"}, "-p 700 -M "},
		{notes{"affinity-timeout": "700"}, "-p 700\n"},
		{notes{"max-connections": "5"}, "-x 5"},
		{notes{"max-connections": "900", "resume-connections": "800"}, "-x 900 -y 800"},
		{notes{"slow-start": "1s"}, "-s wrr"},
		{notes{"weight": "0"}, "-w 0"},
		{notes{"one-packet": "true"}, "-w 1"},
		{notes{"scheduler": "rr"}, "-s wrr"}, // still wrr after slow start: with equal weights it behaves like rr
	}
	if w.kernelHas(t, "twos") {
		steps = append(steps, step{notes{"scheduler": "twos"}, "-s twos"})
	}
	for _, step := range steps {
		s.notes = step.notes
		w.put(t, s)
		table := w.awaitSaved(t, w.node1, s, step.want)
		for _, f := range w.FamilyList() {
			n := w.connectionsMade(t, s, f)
			if n < made[f] || n == 0 {
				t.Errorf("with %v the virtual server was recreated: its connection counter is %d, and was %d before\n%s", step.notes, n, made[f], table)
			}
			made[f] = n
		}
	}
	for _, f := range flows {
		f.AwaitRound(t, patience)
		t.Log(f.MustBeUnharmed(t))
	}
}

// awaitConnections waits for the kernel, which updates the reported counters every two seconds.
func (w *world) awaitConnections(t *testing.T, s service, f cluster.Family) (made int) {
	t.Helper()
	cluster.Eventually(t, patience, fmt.Sprintf("the %s server of %s counts connections", f, s.name), func() error {
		if made = w.connectionsMade(t, s, f); made == 0 {
			return errors.New("none yet")
		}
		return nil
	})
	return made
}

func (w *world) awaitSaved(t *testing.T, node *cluster.Node, s service, want string) (table string) {
	t.Helper()
	cluster.Eventually(t, patience, fmt.Sprintf("the virtual servers on %s have %q", node.Name, want), func() (err error) {
		for _, f := range w.FamilyList() {
			if table, err = saved(node, s.at(f)); err == nil && !strings.Contains(table, want) {
				err = fmt.Errorf("have\n%s", table)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	return table
}

// saved also contains the connection limits, which ipvsadm -S omits.
func saved(node *cluster.Node, at string) (string, error) {
	key := kernel.ServerKey{Addr: netip.MustParseAddrPort(at), Protocol: inet.TCP}
	var b strings.Builder
	err := node.Do(func() error {
		backend, err := ipvs.New()
		if err != nil {
			return err
		}
		defer backend.Close()
		found, err := backend.Lookup(context.Background(), []kernel.ServerKey{key})
		server := found[key]
		fmt.Fprintf(&b, "%s\n", server.Server)
		for _, d := range server.Destinations {
			fmt.Fprintf(&b, "%s\n", d.Destination)
		}
		return err
	})
	return b.String(), err
}

var statsLine = regexp.MustCompile(`(?m)^TCP\s+\S+\s+(\d+)`)

// The kernel counts connections from the creation of the virtual server.
func (w *world) connectionsMade(t *testing.T, s service, f cluster.Family) int {
	t.Helper()
	out := w.node1.MustRun(t, "ipvsadm", "-L", "-n", "--stats", "--exact", "-t", s.at(f))
	m := statsLine.FindStringSubmatch(out)
	if m == nil {
		t.Fatalf("no statistics in\n%s", out)
	}
	n, _ := strconv.Atoi(m[1])
	return n
}
