package differential

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kube-ipvs/kube-ipvs/e2e/differential/draw"
	"github.com/kube-ipvs/kube-ipvs/e2e/differential/judge"
	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/controlplane"
)

// patience is the maximum time to process a set of objects. kube-proxy starts a process for every set entry.
const patience = 15 * time.Minute

// stage contains the two contenders and their API server.
type stage struct {
	theirs, ours *contender
	// planes is true if both programs are kube-ipvs. "theirs" then uses IPVS, and "ours" nftables.
	planes    bool
	world     draw.World
	api       *controlplane.ControlPlane
	client    *kubernetes.Clientset
	applied   map[string]draw.Document // by key
	given     draw.Set                 // the last applied set
	nodePorts []string                 // of both programs
	epoch     int                      // of the marker
	held      []*cluster.Conn          // connections to the endpoint that leaves in the next epoch
}

func newStage(t *testing.T, planes bool) *stage {
	t.Helper()
	begin := time.Now()
	s := &stage{planes: planes, theirs: newContender(t, "theirs"), ours: newContender(t, "ours"), applied: map[string]draw.Document{}}
	t.Logf("created two clusters in %s", time.Since(begin).Round(100*time.Millisecond))
	s.world = s.theirs.world()
	s.api = controlplane.Start(t, controlplane.Config{
		NetNS:        s.theirs.Router.Namespace(),
		BindAddress:  apiAddress,
		Port:         apiPort,
		ReadyTimeout: 5 * time.Minute, // an emulated machine may be busy
	})
	admin := s.api.Client()
	admin.WarningHandler = rest.NoWarnings{} // each object causes warnings about deprecated fields
	s.client = kubernetes.NewForConfigOrDie(admin)
	relayAPI(t, s.ours, s.theirs)
	var namespaces strings.Builder
	for _, n := range draw.Namespaces {
		fmt.Fprintf(&namespaces, "apiVersion: v1\nkind: Namespace\nmetadata: {name: %s}\n---\n", n)
	}
	if err := s.api.Apply(t.Context(), namespaces.String()); err != nil {
		t.Fatal(err)
	}
	// At first the nodes have no zones. The first batch sets them (see startKubeProxy).
	nowhere := slices.Clone(s.world.Nodes)
	for i := range nowhere {
		nowhere[i].Zone = ""
	}
	s.give(t, draw.Set{Nodes: nowhere})
	s.configure(t, nil)
	s.settle(t)
	return s
}

// configure starts or restarts both programs with the given nodePortAddresses. The next objects should change the
// first node's zone (see startKubeProxy).
func (s *stage) configure(t *testing.T, nodePorts []string) {
	t.Helper()
	if s.theirs.process != nil {
		if slices.Equal(nodePorts, s.nodePorts) {
			return
		}
		t.Logf("  restarting both with nodePortAddresses %v", nodePorts)
	}
	config, err := s.api.Kubeconfig("system:kube-proxy")
	if err != nil {
		t.Fatal(err)
	}
	if s.planes {
		s.ours.balancing = true
		s.theirs.startOurs(t, config, nodePorts, "--data-plane", "ipvs")
		s.ours.startOurs(t, config, nodePorts, "--data-plane", "nftables")
	} else {
		s.theirs.startKubeProxy(t, config, nodePorts)
		s.ours.startOurs(t, config, nodePorts)
	}
	s.nodePorts = nodePorts
}

// settle waits until both programs have processed all objects.
func (s *stage) settle(t *testing.T) {
	t.Helper()
	for _, c := range []*contender{s.theirs, s.ours} {
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
	bound, err := c.bound() // faster than reading the table
	if err != nil {
		return err
	}
	for i := range 2 {
		v6 := i == 1
		if bound[markerAddress(s.epoch-1, v6)] || !bound[markerAddress(s.epoch, v6)] {
			return errors.New("the previous epoch's marker still exists")
		}
	}
	state, err := c.state()
	if err != nil {
		return err
	}
	for i := range 2 {
		v6 := i == 1
		want := netip.AddrPortFrom(s.current().Addr(v6), uint16(targetPorts[0]))
		if _, still := state.Servers[tcpKey(markerAddress(s.epoch-1, v6))]; still {
			return errors.New("the previous epoch's marker is still served")
		}
		for _, key := range []judge.Key{tcpKey(markerAddress(s.epoch, v6)), tcpKey(leaverAddresses[i])} {
			if dests := state.Servers[key].Serving(); len(dests) != 1 || dests[0] != want {
				return fmt.Errorf("epoch %d: destinations of %s: want %s, got %v", s.epoch, key, want, dests)
			}
			if c == s.ours && len(state.Servers[key].Destinations) != 1 {
				return fmt.Errorf("epoch %d: %s is still draining: %s", s.epoch, key, state.Servers[key])
			}
		}
	}
	return nil
}

// hold opens connections to the endpoint that leaves in the next epoch. That endpoint must then drain.
func (s *stage) hold(t *testing.T) {
	t.Helper()
	for _, c := range s.held {
		c.Close()
	}
	s.held = nil
	for _, c := range []*contender{s.theirs, s.ours} {
		for _, addr := range leaverAddresses {
			at := tcpKey(addr).Addr.String()
			s.held = append(s.held, c.clients["client"].Open(t, cluster.TCP, at, cluster.Within(20*time.Second)))
		}
	}
}

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
