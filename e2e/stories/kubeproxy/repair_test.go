package kubeproxy

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

// show is a command whose output differs until the damage is repaired.
var damages = []struct{ name, script, show string }{
	{"ipvsadm -C", "ipvsadm -C", "ipvsadm -Sn"},
	{"iptables -t nat -F", "iptables -w -t nat -F", "iptables-save -t nat | grep ^-A"},
	{"ipset flush", "ipset flush", "ipset save"},
	{"ip link del kube-ipvs0", "ip link del kube-ipvs0", "ip -o -4 addr show dev kube-ipvs0 | wc -l"},
}

// The times are only logged, because they depend on the machine's load.
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
			ours, theirs := w.both(func(s *side) string {
				took, err := s.repairs(d.script, d.show)
				if err != nil {
					return "not repaired after " + took.Round(time.Second).String() + ": " + strings.ReplaceAll(err.Error(), "\n", " ")
				}
				return "repaired after " + took.Round(10*time.Millisecond).String()
			})
			t.Attr("figure", "kube-ipvs: "+ours)
			t.Attr("figure", "kube-proxy: "+theirs)
			if strings.HasPrefix(ours, "not") {
				t.Error("kube-ipvs repaired nothing")
			}
		})
	}
}

func (s *side) repairs(script, show string) (time.Duration, error) {
	state := func() string {
		out, _ := s.node.Run("sh", "-c", show) // the device may not exist
		lines := strings.Split(out, "\n")
		slices.Sort(lines)
		return strings.Join(lines, "\n")
	}
	before := state()
	if _, err := s.node.Run("sh", "-ec", script); err != nil {
		return 0, err
	}
	began := time.Now()
	for time.Since(began) < 2*time.Minute {
		if state() == before {
			return time.Since(began), nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	return time.Since(began), errors.New("the state still differs")
}
