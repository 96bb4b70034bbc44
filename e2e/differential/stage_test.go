package differential

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/kube-ipvs/kube-ipvs/e2e/cluster"
	"github.com/kube-ipvs/kube-ipvs/e2e/controlplane"
	"github.com/kube-ipvs/kube-ipvs/e2e/differential/draw"
	"github.com/kube-ipvs/kube-ipvs/e2e/differential/judge"
)

// patience bounds how long a program may take for a set of objects. kube-proxy starts a process for every entry of a set.
const patience = 15 * time.Minute

// stage has both contenders, and the API server that they follow.
type stage struct {
	theirs, ours *contender
	world        draw.World
	api          *controlplane.ControlPlane
	client       *kubernetes.Clientset
	applied      map[string]string // documents by key
	given        draw.Set          // the set that they are of
	epoch        int               // of the marker
	held         []*cluster.Conn   // connections to the endpoint that leaves with the next epoch
}

func newStage(t *testing.T) *stage {
	t.Helper()
	begin := time.Now()
	s := &stage{theirs: newContender(t, "theirs"), ours: newContender(t, "ours"), applied: map[string]string{}}
	t.Logf("two clusters are there after %s", time.Since(begin).Round(100*time.Millisecond))
	s.world = s.theirs.world()
	s.api = controlplane.Start(t, controlplane.Config{
		NetNS:        s.theirs.Router.Namespace(),
		BindAddress:  apiAddress,
		Port:         apiPort,
		ReadyTimeout: 5 * time.Minute, // an emulated machine that others use, too
	})
	s.client = kubernetes.NewForConfigOrDie(s.api.Client())
	relayAPI(t, s.ours, s.theirs)
	var namespaces strings.Builder
	for _, n := range draw.Namespaces {
		fmt.Fprintf(&namespaces, "apiVersion: v1\nkind: Namespace\nmetadata: {name: %s}\n---\n", n)
	}
	if err := s.api.Apply(t.Context(), namespaces.String()); err != nil {
		t.Fatal(err)
	}
	s.give(t, draw.Set{Nodes: s.world.Nodes})
	config, err := s.api.Kubeconfig("system:kube-proxy")
	if err != nil {
		t.Fatal(err)
	}
	s.theirs.startKubeProxy(t, config)
	s.ours.startOurs(t, config)
	s.settle(t)
	return s
}

// give makes the API server hold exactly these objects, and a marker of the next epoch.
func (s *stage) give(t *testing.T, set draw.Set) {
	t.Helper()
	s.epoch++
	begin := time.Now()
	docs := append(set.Documents(), draw.Document{Key: "marker", YAML: s.marker()})
	docs = s.giveNodes(t, docs)
	wanted := map[string]string{}
	var changed, gone []draw.Document
	for _, d := range docs {
		wanted[d.Key] = d.YAML
		if s.applied[d.Key] != d.YAML {
			changed = append(changed, d)
		}
	}
	for key, text := range s.applied {
		if _, still := wanted[key]; !still {
			gone = append(gone, draw.Document{Key: key, YAML: text})
		}
	}
	if err := s.api.Delete(t.Context(), draw.Join(gone)); err != nil {
		t.Fatal(err)
	}
	if err := s.api.Apply(t.Context(), draw.Join(changed)); err != nil {
		t.Fatal(err)
	}
	s.applied, s.given = wanted, set
	t.Logf("  %d objects given and %d removed in %s", len(changed), len(gone), time.Since(begin).Round(100*time.Millisecond))
}

// giveNodes writes the Nodes, and returns the other documents. Server-side apply knows a Node's addresses by their type, of
// which ours have several: kubelets write the whole list, and so does this.
func (s *stage) giveNodes(t *testing.T, docs []draw.Document) (others []draw.Document) {
	t.Helper()
	nodes := s.client.CoreV1().Nodes()
	for _, d := range docs {
		node := &corev1.Node{}
		if !strings.HasPrefix(d.Key, "Node ") {
			others = append(others, d)
			continue
		}
		err := yaml.Unmarshal([]byte(d.YAML), node)
		if err != nil {
			t.Fatal(err)
		}
		addresses := node.Status.Addresses
		if _, err = nodes.Create(t.Context(), node, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
			_, err = nodes.Update(t.Context(), node, metav1.UpdateOptions{})
		}
		if err == nil {
			node.Status.Addresses = addresses
			_, err = nodes.UpdateStatus(t.Context(), node, metav1.UpdateOptions{})
		}
		if err != nil {
			t.Fatalf("give node %s: %v", node.Name, err)
		}
	}
	return others
}

// The marker tells when a program has done all that it was given. Its port changes with every epoch; kube-proxy removes the
// virtual server of the port before at the very end of a sync, of which it has one for each family. The leaver keeps its port
// and swaps its one endpoint.
var (
	markerAddresses = []netip.Addr{netip.MustParseAddr("10.96.255.1"), netip.MustParseAddr("fd00:10:96::ff01")}
	leaverAddresses = []netip.Addr{netip.MustParseAddr("10.96.255.2"), netip.MustParseAddr("fd00:10:96::ff02")}
)

const leaverPort = 80

func tcpKey(addr netip.Addr, port int) judge.Key {
	return judge.Key{Protocol: corev1.ProtocolTCP, Addr: netip.AddrPortFrom(addr, uint16(port))}
}

func markerPort(epoch int) int { return 1000 + epoch }

// current is the pod behind marker and leaver.
func (s *stage) current() draw.Pod { return s.world.Pods[s.epoch%2*3] }

func (s *stage) marker() string {
	return s.pointer("zz-leaver", leaverAddresses, leaverPort) + s.pointer("zz-marker", markerAddresses, markerPort(s.epoch))
}

// pointer is a Service with one endpoint.
func (s *stage) pointer(name string, ips []netip.Addr, port int) string {
	var b strings.Builder
	for _, family := range []string{"IPv4", "IPv6"} {
		fmt.Fprintf(&b, `apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: "%[1]s-%[6]s", labels: {kubernetes.io/service-name: %[1]s}}
addressType: %[2]s
ports: [{port: %[3]d, protocol: TCP, name: ""}]
endpoints: [{addresses: ["%[4]s"], nodeName: %[5]s}]
---
`, name, family, targetPorts[0], s.current().Addr(family == "IPv6"), s.current().Node, strings.ToLower(family))
	}
	fmt.Fprintf(&b, `apiVersion: v1
kind: Service
metadata: {name: %s}
spec:
  clusterIP: "%[2]s"
  clusterIPs: ["%[2]s", "%[3]s"]
  ipFamilies: [IPv4, IPv6]
  ipFamilyPolicy: RequireDualStack
  ports: [{port: %[4]d, protocol: TCP}]
---
`, name, ips[0], ips[1], port)
	return b.String()
}

// settle waits until both programs have done all that they were given, and says every half minute what is missing.
func (s *stage) settle(t *testing.T) {
	t.Helper()
	for _, c := range []*contender{s.ours, s.theirs} {
		begin := time.Now()
		for {
			err := cluster.Poll(30*time.Second, func() error { return s.isSettled(c) })
			took := time.Since(begin).Round(100 * time.Millisecond)
			if err == nil {
				t.Logf("  %s: settled after %s", c.name, took)
				break
			}
			if took > patience || !c.process.Running() {
				t.Fatalf("%s: not settled after %s: %v", c.name, took, err)
			}
			t.Logf("  %s: not settled after %s: %v", c.name, took, err)
		}
	}
}

func (s *stage) isSettled(c *contender) error {
	state, err := c.state()
	if err != nil {
		return err
	}
	for i := range markerAddresses {
		want := netip.AddrPortFrom(s.current().Addr(i == 1), uint16(targetPorts[0]))
		if _, still := state.Servers[tcpKey(markerAddresses[i], markerPort(s.epoch-1))]; still {
			return errors.New("the marker of the epoch before is still there")
		}
		for _, key := range []judge.Key{tcpKey(markerAddresses[i], markerPort(s.epoch)), tcpKey(leaverAddresses[i], leaverPort)} {
			if dests := state.Servers[key].Serving(); len(dests) != 1 || dests[0] != want {
				return fmt.Errorf("epoch %d: want %s to lead to %s, got %v", s.epoch, key, want, dests)
			}
			if c == s.ours && len(state.Servers[key].Destinations) != 1 {
				return fmt.Errorf("epoch %d: %s is still draining: %s", s.epoch, key, state.Servers[key])
			}
		}
	}
	return nil
}

// hold opens connections to the endpoint that leaves with the next epoch, so that it has to drain.
func (s *stage) hold(t *testing.T) {
	t.Helper()
	for _, c := range s.held {
		c.Close()
	}
	s.held = nil
	for _, c := range []*contender{s.theirs, s.ours} {
		for _, addr := range leaverAddresses {
			at := tcpKey(addr, leaverPort).Addr.String()
			s.held = append(s.held, c.clients["client"].Open(t, cluster.TCP, at, cluster.Within(20*time.Second)))
		}
	}
}

// created says when the API server made each Service.
func (s *stage) created(ctx context.Context) (map[string]time.Time, error) {
	list, err := s.client.CoreV1().Services("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	times := map[string]time.Time{}
	for _, svc := range list.Items {
		times[svc.Namespace+"/"+svc.Name] = svc.CreationTimestamp.Time
	}
	return times, nil
}
