package schedulers

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/controlplane"
)

// TestAPIServer uses an API server instead of manifests. An invalid annotation results in an Event.
func TestAPIServer(t *testing.T) {
	w := onWorld(t)
	api, err := controlplane.Launch(t.Context(), controlplane.Config{
		NetNS:        w.Router.Namespace(),
		ReadyTimeout: 5 * time.Minute, // for a busy emulated machine
		BindAddress:  netip.MustParseAddr("192.168.50.1"),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := api.Stop(); err != nil {
			t.Error(err)
		}
	})
	config, err := api.Kubeconfig("system:kube-proxy")
	if err != nil {
		t.Fatal(err)
	}
	w.stopAgent(t, w.node2)
	agent := w.node2.MustStart(t, cluster.AgentBinary(t), "run", "--kubeconfig", config, "--hostname-override", "node-2",
		"--cluster-cidr", "10.244.0.0/16,fd00:10:244::/48", "--conntrack-max-per-core", "0")
	t.Cleanup(func() {
		if err := agent.Stop(patience); err != nil {
			t.Error(err)
		}
		w.startAgent(t, w.node2)
		w.agents[w.node2].AwaitLog(t, patience, "initial sync complete")
	})
	s := service{name: "api", backends: w.backends[8:12],
		ips: map[cluster.Family]string{cluster.V4: "10.96.2.1", cluster.V6: "fd00:10:96::201"}}
	apply := func(n notes, node1 notes) {
		s.notes = n
		manifests := s.manifest() + nodeManifest("node-1", "zone-a", node1) + nodeManifest("node-2", "zone-b", nil)
		if err := api.Apply(t.Context(), manifests); err != nil {
			t.Fatal(err)
		}
	}
	apply(notes{"scheduler": "lc", "weight-by-pod": "w12=3"}, nil)
	w.awaitSaved(t, w.node2, s, "-s wlc")
	apply(notes{"scheduler": "mh"}, notes{"weight": "4"})
	w.awaitSaved(t, w.node2, s, "-s mh -b mh-fallback,mh-port")
	w.awaitSaved(t, w.node2, s, "-w 4")
	apply(notes{"scheduler": "fastest"}, nil)
	w.awaitSaved(t, w.node2, s, "rr\n") // also matches wrr, which the agent uses until the Node's weight is removed
	client, err := kubernetes.NewForConfig(api.Client())
	if err != nil {
		t.Fatal(err)
	}
	cluster.Eventually(t, patience, "an Event names the annotation", func() error { return hasEvent(t.Context(), client) })
}

func hasEvent(ctx context.Context, client kubernetes.Interface) error {
	events, err := client.EventsV1().Events("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var notes []string
	for _, e := range events.Items {
		notes = append(notes, fmt.Sprintf("%s %s: %s", e.Type, e.Regarding.Name, e.Note))
	}
	for _, note := range notes {
		if strings.HasPrefix(note, "Warning api") && strings.Contains(note, "kube-ipvs.io/scheduler") &&
			strings.Contains(note, "fastest") && strings.Contains(note, "must be one of rr, wrr") {
			return nil
		}
	}
	return errors.New(strings.Join(notes, "\n"))
}
