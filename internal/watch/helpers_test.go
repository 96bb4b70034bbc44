package watch

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// klogEntries is what client-go logs in these tests. The logger is set once, because client-go's goroutines read it without a lock.
var klogEntries *observer.ObservedLogs

func TestMain(m *testing.M) {
	core, entries := observer.New(zapcore.DebugLevel)
	klogEntries = entries
	RedirectKlog(zap.New(core))
	utilruntime.ErrorHandlers = nil // one of them sleeps between errors, based on a time that it keeps across bubbles
	// Each test closes its HTTP connections, so any goroutine left is a leak.
	goleak.VerifyTestMain(m)
}

// deadline is the timeout for expected events. It is long because only a failing test waits that long.
const deadline = 20 * time.Second

func ptr[T any](v T) *T { return &v }

func newTestConverter() converter { return newConverter("") }

// testService returns a valid Service, edited by change.
func testService(name string, change func(*v1.Service)) *v1.Service {
	svc := &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: "u-1", CreationTimestamp: metav1.Unix(1700000000, 0)},
		Spec: v1.ServiceSpec{
			Type: v1.ServiceTypeClusterIP, ClusterIP: "10.96.0.10", ClusterIPs: []string{"10.96.0.10"},
			Ports: []v1.ServicePort{{Name: "http", Protocol: v1.ProtocolTCP, Port: 80}},
		},
	}
	if change != nil {
		change(svc)
	}
	return svc
}

// testSlice returns a valid slice with one endpoint, edited by change.
func testSlice(name, service string, change func(*discoveryv1.EndpointSlice)) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: service},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr("http"), Protocol: ptr(v1.ProtocolTCP), Port: ptr(int32(8080))}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.244.1.5"}}},
	}
	if change != nil {
		change(slice)
	}
	return slice
}

// view is the model that a reader builds from the changes of a source.
type view struct {
	services map[model.ServiceID]*model.Service
	problems map[model.ObjectRef][]model.Problem
	nodes    map[string]*model.Node
}

func newView() *view {
	return &view{services: map[model.ServiceID]*model.Service{}, problems: map[model.ObjectRef][]model.Problem{}, nodes: map[string]*model.Node{}}
}

func (v *view) take(changes model.Changes) {
	for id, svc := range changes.Services {
		if svc == nil {
			delete(v.services, id)
		} else {
			v.services[id] = svc
		}
	}
	for object, list := range changes.Problems {
		if len(list) == 0 {
			delete(v.problems, object)
		} else {
			v.problems[object] = list
		}
	}
	for name, node := range changes.Nodes {
		if node == nil {
			delete(v.nodes, name)
		} else {
			v.nodes[name] = node
		}
	}
}

// String prints the view, one line per Service, slice, Node and Problem.
func (v *view) String() string {
	var lines []string
	for _, svc := range v.services {
		lines = append(lines, serviceText(svc))
	}
	for object, list := range v.problems {
		for _, p := range list {
			if p.Object != object {
				lines = append(lines, fmt.Sprintf("MISFILED under %s", object))
			}
			lines = append(lines, p.String())
		}
	}
	for _, node := range v.nodes {
		lines = append(lines, nodeText(node))
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func serviceText(svc *model.Service) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v %v", svc.ID, svc.ClusterIPs)
	for _, p := range svc.Ports {
		fmt.Fprintf(&b, " %s=%d/%v", p.Name, p.Port, p.Protocol)
		writeIf(&b, p.NodePort > 0, "@%d", p.NodePort)
	}
	writeIf(&b, svc.AffinityTimeout > 0, " affinity=%v", svc.AffinityTimeout)
	writeIf(&b, len(svc.ExternalIPs) > 0, " external=%v", svc.ExternalIPs)
	writeIf(&b, len(svc.LoadBalancerIPs) > 0, " balancer=%v", svc.LoadBalancerIPs)
	writeIf(&b, len(svc.SourceRanges) > 0, " from=%v", svc.SourceRanges)
	writeIf(&b, svc.InternalLocal, " internal=local")
	writeIf(&b, svc.ExternalLocal, " external=local")
	writeIf(&b, svc.HealthCheckPort > 0, " health=%d", svc.HealthCheckPort)
	for _, s := range svc.Slices {
		fmt.Fprintf(&b, "\n%v  %s", svc.ID, sliceText(s))
	}
	return b.String()
}

func writeIf(b *strings.Builder, condition bool, format string, args ...any) {
	if condition {
		fmt.Fprintf(b, format, args...)
	}
}

func nodeText(n *model.Node) string {
	var b strings.Builder
	fmt.Fprintf(&b, "node %s %v pods=%v", n.Name, n.Addresses, n.PodCIDRs)
	writeIf(&b, n.Zone != "", " zone=%s", n.Zone)
	writeIf(&b, n.Leaving, " leaving")
	return b.String()
}

func sliceText(s *model.EndpointSlice) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %v", s.Name, s.Family)
	for _, p := range s.Ports {
		fmt.Fprintf(&b, " %s=%d/%v", p.Name, p.Port, p.Protocol)
	}
	for _, e := range s.Endpoints {
		fmt.Fprintf(&b, " %v", e.Addr)
		for _, flag := range []struct {
			set  bool
			name string
		}{{e.Ready, "ready"}, {e.Serving, "serving"}, {e.Terminating, "terminating"}} {
			if flag.set {
				b.WriteString("+" + flag.name)
			}
		}
		for _, s := range []string{e.Node, e.Zone, e.Pod} {
			if s != "" {
				b.WriteString("@" + s)
			}
		}
		writeIf(&b, len(e.ForNodes) > 0, "+nodes%v", e.ForNodes)
		writeIf(&b, len(e.ForZones) > 0, "+zones%v", e.ForZones)
	}
	return b.String()
}

// source is implemented by the Store and both sources.
type source interface {
	Changed() <-chan struct{}
	Synced() bool
	Take() model.Changes
}

// await takes changes until the condition holds.
func (v *view) await(t *testing.T, src source, what string, condition func() bool) {
	t.Helper()
	late := time.After(deadline)
	for {
		if src.Synced() {
			v.take(src.Take())
			if condition() {
				return
			}
		}
		select {
		case <-src.Changed():
		case <-late:
			t.Fatalf("%s: not within %v; synced %v, have\n%s", what, deadline, src.Synced(), v)
		}
	}
}

// awaitText waits until the view equals the text.
func (v *view) awaitText(t *testing.T, src source, what, want string) {
	t.Helper()
	v.await(t, src, what+", want\n"+want, func() bool { return v.String() == want })
}
