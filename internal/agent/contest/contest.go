package contest

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

const (
	// often is how many audits must find an object changed before it is contested. An operator changes the same object
	// less often.
	often = 3
	// quiet is how long an object must stay unchanged until it is no longer contested.
	quiet = 10 * time.Minute
	// firstDistance is the initial minimum time between two audits triggered by kernel changes while an object is
	// contested. Each repair doubles it, up to the audit interval.
	firstDistance = 2 * time.Second
)

// Contests records which objects another program keeps changing.
type Contests struct {
	objects map[string]*object
}

type object struct {
	Finding
	repairs     int
	first, last time.Time
}

// Audit records kernel changes that no change in the cluster explains. period is the time between two audits.
func (c *Contests) Audit(now time.Time, period time.Duration, found []Finding) {
	maps.DeleteFunc(c.objects, func(_ string, o *object) bool { return now.Sub(o.last) > max(quiet, 5*period) })
	if c.objects == nil {
		c.objects = map[string]*object{}
	}
	for _, f := range found {
		o := c.objects[f.Object]
		if o == nil {
			o = &object{first: now}
			c.objects[f.Object] = o
		}
		f.KubeProxy = f.KubeProxy || o.KubeProxy
		if o.Finding = f; !o.last.Equal(now) {
			o.repairs++
		}
		o.last = now
	}
}

func (c *Contests) contested() (list []*object) {
	for _, name := range slices.Sorted(maps.Keys(c.objects)) {
		if o := c.objects[name]; o.repairs >= often {
			list = append(list, o)
		}
	}
	return list
}

// Distance returns the minimum time between two audits triggered by kernel changes; 0 if no object is contested. It
// prevents a race with the other program. Periodic audits continue, because without repairs Services would stay
// broken.
func (c *Contests) Distance(period time.Duration) time.Duration {
	distance := time.Duration(0)
	for _, o := range c.contested() {
		const doublings = 10
		distance = max(distance, firstDistance<<min(o.repairs-often, doublings))
	}
	return min(distance, period)
}

// Problems returns one Problem per contested object. Its text does not change during the contest, so that it is
// reported once.
func (c *Contests) Problems(node string) (list []model.Problem) {
	for _, o := range c.contested() {
		p := model.Problem{
			Object: model.NodeRef(node), Field: o.Object,
			Reason: fmt.Sprintf("another program has kept changing this since %s; the agent repairs it on each audit, and Services fail in between",
				o.first.UTC().Format(time.RFC3339)),
			Remedy: "stop that program, or configure each of the two to serve its own Services (side-by-side.md)",
		}
		if o.KubeProxy {
			p.Reason = fmt.Sprintf("kube-proxy has kept changing this since %s; the agent repairs it on each audit, and Services fail in between",
				o.first.UTC().Format(time.RFC3339))
			p.Remedy = "stop kube-proxy on this node (replace-kube-proxy.md), or configure each of the two to serve its own Services (side-by-side.md)"
		}
		list = append(list, p)
	}
	return list
}
