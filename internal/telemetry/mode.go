package telemetry

import (
	"fmt"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// mode contains the metrics that name the data plane and the rule layer.
type mode struct {
	dataPlane        atomic.Pointer[string]
	planes, rulesets *prometheus.GaugeVec
	lostAffinity     prometheus.Counter
}

// newMode returns nil if the mode is unknown.
func newMode(dataPlane, rules string) *mode {
	if dataPlane == "" {
		return nil
	}
	m := &mode{
		planes:   gauges("kube_ipvs_data_plane", "Always 1; the label names what balances connections on this node: ipvs or nftables.", "data_plane"),
		rulesets: gauges("kube_ipvs_rules", "Always 1; the label names where the agent keeps its sets and rules on this node: iptables or nftables.", "rules"),
	}
	m.lostAffinity = counter("kube_ipvs_affinity_records_lost_total",
		"Clients with session affinity whose endpoint was forgotten since the agent started, because the node moved from nftables to IPVS.")
	m.rulesets.WithLabelValues(rules).Set(1)
	m.set(dataPlane)
	return m
}

func (m *mode) set(dataPlane string) {
	m.dataPlane.Store(&dataPlane)
	m.planes.Reset()
	m.planes.WithLabelValues(dataPlane).Set(1)
}

func (m *mode) plane() string {
	if m == nil {
		return ""
	}
	return *m.dataPlane.Load()
}

func (m *mode) register(r prometheus.Registerer) {
	if m != nil {
		r.MustRegister(m.planes, m.rulesets, m.lostAffinity)
	}
}

// Moved records that another data plane balances now, and how many records of clients with affinity the node has lost thereby. It ends the
// problem with this field.
func (t *Telemetry) Moved(dataPlane string, lost int, field string) {
	t.metrics.mode.set(dataPlane)
	t.metrics.mode.lostAffinity.Add(float64(lost))
	t.ClearProblem(field)
	if t.events != nil {
		text := fmt.Sprintf("%s balances connections now; open connections continue; %d clients with session affinity may reach another endpoint", dataPlane, lost)
		t.events.enqueue(notice{topic: aboutMove, problem: model.Problem{Object: model.NodeRef(t.cfg.Node), Reason: text}, resolved: true})
	}
}
