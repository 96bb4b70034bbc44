package schedulers

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// twos draws two endpoints by weight and chooses the one with fewer connections relative to its weight. On a kernel
// without twos, rr must replace it. Kernel 6.12 has twos.
func TestTwoChoices(t *testing.T) {
	w := onWorld(t)
	if !w.kernelHas(t, "twos") {
		w.withoutTwos(t, os.Getenv("LAB_KERNEL"))
		return
	}
	t.Run("weights", func(t *testing.T) { w.twosByWeight(t, w.backends[8:12]) })
	t.Run("least connections", func(t *testing.T) { w.twosByLoad(t, w.backends[8:10]) })
}

func (w *world) withoutTwos(t *testing.T, release string) {
	if strings.HasPrefix(release, "6.12.") {
		t.Fatalf("kernel %s has no module ip_vs_twos, so no test measures twos, and docs/schedulers.md must mention this", release)
	}
	record(t, "twos NOT MEASURED: kernel %s has no module ip_vs_twos; make nightly PART=stories-6.12 measures it", release)
	two := w.backends[9:11]
	s := w.service(t, "twos", notes{"scheduler": "twos"}, two)
	w.await(t, s, "rr", alike(1, two))
	for _, node := range w.Nodes {
		w.agents[node].AwaitLog(t, patience, "this node's kernel has no such scheduler: rr is used until it has the module ip_vs_twos")
	}
}

// The shares follow the weights, almost as with wlc.
func (w *world) twosByWeight(t *testing.T, four []*backend) {
	weights := map[string]int{four[0].name: 10, four[1].name: 5, four[2].name: 4, four[3].name: 1}
	s := w.service(t, "twos-weights", notes{"scheduler": "twos", "weight-by-pod": "w9=10, w10=5, w11=4, w12=1"}, four)
	w.await(t, s, "twos", weights)
	w.bothFamilies(t, func(t *testing.T, f cluster.Family) {
		c := w.fromMany(t, 1000, cluster.UDP, f, s.at(f))
		c.want(t, "twos", weights, 3)
		if f == cluster.V4 {
			plot(t, "twos, weights 10, 5, 4, 1", c, four)
		}
	})
}

// A busy endpoint is chosen only if twos draws it twice. The kernel draws the first destination in its list too
// often, as if its weight were larger by one: in two of three draws with weights 1 and 1, and in 11 of 21 with
// weights 10 and 10.
func (w *world) twosByLoad(t *testing.T, two []*backend) {
	idle, busy := two[0].name, two[1].name
	for weight, tolerance := range map[int]float64{1: 26, 10: 14} {
		s := w.service(t, fmt.Sprint("twos-uneven-", weight), notes{"scheduler": "twos", "weight": fmt.Sprint(weight)}, two)
		w.await(t, s, "twos", alike(weight, two))
		w.bothFamilies(t, func(t *testing.T, f cluster.Family) {
			h := w.hold(t, 60, f, s.at(f))
			defer h.closeAll("")
			h.counts().want(t, "twos, open connections", alike(1, two), 25)
			h.closeAll(idle)
			c := w.fromMany(t, 600, cluster.TCP, f, s.at(f))
			c.want(t, "twos, one of two endpoints is busy", map[string]int{idle: 73, busy: 27}, tolerance)
			plot(t, fmt.Sprintf("twos, weights %d, where one endpoint's connections have ended and the other's are open: the next ones (%s)",
				weight, f), c, two)
		})
	}
}
