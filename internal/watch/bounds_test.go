package watch

import (
	"context"
	"fmt"
	"math"
	"net/netip"
	"regexp"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/live"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// trial contains the values that the kernel must show for the bounds of an annotation. If the kernel shows no value, exempt gives the
// reason.
type trial struct {
	least, most bound
	// refused are the nearest values outside the bounds.
	refused []string
	// with contains other annotations that this annotation requires.
	with   map[string]string
	shown  func(map[inet.Family]kernel.ObservedServer) uint32
	exempt string
}

type bound struct {
	value string
	shown uint32
}

const maxInt = math.MaxInt32

var affinity = map[string]string{"affinity-timeout": "10m"}

func weightShown(s map[inet.Family]kernel.ObservedServer) uint32 {
	return s[inet.IPv4].Destinations[0].Weight
}

func weightTrial(prefix string) trial {
	return trial{
		least: bound{prefix + "0", 0}, most: bound{prefix + "2147483647", maxInt},
		refused: []string{prefix + "-1", prefix + "2147483648"}, shown: weightShown,
	}
}

var serviceTrials = map[string]trial{
	"scheduler":       {exempt: "a name"},
	"scheduler-flags": {exempt: "names"},
	"affinity-ports":  {exempt: "a name"},
	"one-packet":      {exempt: "a name"},
	"proxy-protocol":  {exempt: "a version, which no kernel has"},
	"affinity-timeout": {
		least: bound{"1s", 1}, most: bound{"744h", 744 * 3600}, refused: []string{"0s", "999ms", "744h1s"},
		shown: func(s map[inet.Family]kernel.ObservedServer) uint32 { return s[inet.IPv4].Timeout },
	},
	"affinity-prefix-ipv4": {
		least: bound{"1", 1}, most: bound{"32", 32}, refused: []string{"0", "33"}, with: affinity,
		shown: func(s map[inet.Family]kernel.ObservedServer) uint32 { return uint32(s[inet.IPv4].MaskBits) },
	},
	"affinity-prefix-ipv6": {
		least: bound{"1", 1}, most: bound{"128", 128}, refused: []string{"0", "129"}, with: affinity,
		shown: func(s map[inet.Family]kernel.ObservedServer) uint32 { return uint32(s[inet.IPv6].MaskBits) },
	},
	"max-connections": {
		least: bound{"1", 1}, most: bound{"2147483647", maxInt}, refused: []string{"0", "2147483648"},
		shown: func(s map[inet.Family]kernel.ObservedServer) uint32 { return s[inet.IPv4].Destinations[0].Upper },
	},
	"resume-connections": {
		least: bound{"1", 1}, most: bound{"2147483646", maxInt - 1}, refused: []string{"0", "2147483647", "2147483648"},
		with:  map[string]string{"max-connections": "2147483647"},
		shown: func(s map[inet.Family]kernel.ObservedServer) uint32 { return s[inet.IPv4].Destinations[0].Lower },
	},
	"weight":         weightTrial(""),
	"weight-by-zone": weightTrial("zone-a="),
	"weight-by-node": weightTrial("node-b="),
	"weight-by-pod":  weightTrial("web-0="),
	// The kernel does not show the time, because the agent writes only the steps of the weight.
	"slow-start": {
		least: bound{"1s", compile.SlowStartSteps}, most: bound{"1h", compile.SlowStartSteps}, refused: []string{"0s", "1h0m1s"}, shown: weightShown,
	},
}

var nodeTrials = map[string]trial{"weight": weightTrial("")}

// TestAnnotationBoundsInTheKernel writes the smallest and the largest value of each annotation to the kernel, and reads it
// back. The parser rejects the values just outside these bounds.
func TestAnnotationBoundsInTheKernel(t *testing.T) {
	labtest.Need(t)
	tryEach(t, serviceAnnotations, serviceTrials, func(annotations map[string]string) (*model.Service, *model.Node, int) {
		r := newConverter("").service(boundsService(annotations), "")
		return r.Service, &model.Node{Name: "node-b"}, len(r.Problems)
	})
	tryEach(t, nodeAnnotations, nodeTrials, func(annotations map[string]string) (*model.Service, *model.Node, int) {
		r := newConverter("").node(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-b", Annotations: annotations}}, "")
		return newConverter("").service(boundsService(nil), "").Service, r.Node, len(r.Problems)
	})
}

func (tr trial) annotations(key, value string) map[string]string {
	all := map[string]string{key: value}
	for k, v := range tr.with {
		all[annotationPrefix+k] = v
	}
	return all
}

var documented = regexp.MustCompile(`from (\S+) to (\S+)`)

func tryEach[T any](t *testing.T, table []annotation[T], trials map[string]trial, parse func(map[string]string) (*model.Service, *model.Node, int)) {
	t.Helper()
	for _, row := range table {
		name := row.Key[len(annotationPrefix):]
		t.Run(fmt.Sprintf("%T/%s", *new(T), name), func(t *testing.T) {
			tr, found := trials[name]
			said := documented.FindStringSubmatch(row.Valid)
			switch {
			case !found || tr.exempt != "" && said != nil:
				t.Fatalf("%q has no trial; add one with its bounds", row.Valid)
			case tr.exempt != "":
				return
			case said != nil && (said[1] != tr.least.value || said[2] != tr.most.value):
				t.Errorf("the documented bounds are %q, but the trial uses %s and %s", said[0], tr.least.value, tr.most.value)
			}
			for _, b := range []bound{tr.least, tr.most} {
				svc, node, problems := parse(tr.annotations(row.Key, b.value))
				if problems > 0 {
					t.Fatalf("%q is rejected", b.value)
				}
				if got := tr.shown(inKernel(t, svc, node)); got != b.shown {
					t.Errorf("%q: the kernel shows %d, want %d", b.value, got, b.shown)
				}
			}
			for _, value := range tr.refused {
				if _, _, problems := parse(tr.annotations(row.Key, value)); problems == 0 {
					t.Errorf("%q is accepted, but is out of bounds", value)
				}
			}
		})
	}
	if len(trials) != len(table) {
		t.Errorf("got %d trials for %d annotations", len(trials), len(table))
	}
}

func boundsService(annotations map[string]string) *v1.Service {
	return &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", Annotations: annotations},
		Spec: v1.ServiceSpec{
			Type: v1.ServiceTypeClusterIP, ClusterIP: "10.96.0.1", ClusterIPs: []string{"10.96.0.1", "fd00:10:96::1"},
			IPFamilies: []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol}, Ports: []v1.ServicePort{{Port: 80, Protocol: v1.ProtocolTCP}},
		},
	}
}

func inKernel(t *testing.T, svc *model.Service, node *model.Node) map[inet.Family]kernel.ObservedServer {
	t.Helper()
	labtest.NetNS(t)
	k, err := live.Open(live.Config{Families: inet.Families})
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	for _, pod := range []string{"10.244.0.1", "fd00:10:244::1"} {
		e := compiletest.Ready(netip.MustParseAddr(pod))
		e.Zone, e.Pod = "zone-a", "default/web-0"
		slice := &model.EndpointSlice{Name: pod, Family: inet.FamilyOf(e.Addr), Ports: []model.EndpointPort{{Protocol: inet.TCP, Port: 80}}}
		slice.Endpoints = []model.Endpoint{e}
		svc.Slices = append(svc.Slices, slice)
	}
	in := compiletest.Surroundings{Nodes: map[string]*model.Node{node.Name: node}}
	servers := compiletest.Cluster(compiletest.Config(), map[model.ServiceID]*model.Service{svc.ID: svc}, in).Want().Servers
	var ops []kernel.Op
	var keys []kernel.ServerKey
	for key := range servers {
		keys = append(keys, key)
		ops = append(ops, kernel.Op{Verb: kernel.Create, Object: servers[key].Server})
		for _, d := range servers[key].Destinations {
			ops = append(ops, kernel.Op{Verb: kernel.Create, Object: kernel.ServerDestination{Server: key, Destination: d}})
		}
	}
	for i, err := range k.Apply(context.Background(), ops) {
		if err != nil {
			t.Fatalf("%s: %v", ops[i], err)
		}
	}
	observed, err := k.Lookup(context.Background(), keys)
	if err != nil || len(observed) != 2 {
		t.Fatalf("read %v back from the kernel (error %v), want two virtual servers", observed, err)
	}
	byFamily := map[inet.Family]kernel.ObservedServer{}
	for key, server := range observed {
		byFamily[key.Family()] = server
	}
	return byFamily
}
