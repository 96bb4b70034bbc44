package pods

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/kube-ipvs/kube-ipvs/internal/fleet"
)

func largeCluster(t *testing.T, reply func(pod string, line []string) reply) Config {
	t.Helper()
	list := corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}}
	for i := range 1000 {
		list.Items = append(list.Items, agentOn(fmt.Sprintf("node-%03d", i), corev1.PodRunning))
	}
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/pods") {
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(list)
			return
		}
		serveExec(w, r, reply)
	}))
	t.Cleanup(api.Close)
	return Config{Client: rest.Config{Host: api.URL}, Namespace: "kube-system", All: true, Parallel: 10, Timeout: time.Minute}
}

func manyServices() string {
	var items []string
	for i := range 200 {
		items = append(items, fmt.Sprintf(`{"namespace": "shop", "name": "web-%d", "problems": [], "frontends": [{"port": "http", "kind": "ClusterIP",
			"address": "10.96.%d.%d:80", "protocol": "tcp", "scheduler": "rr", "state": "Served", "connections": {"active": 1, "inactive": 2}, "endpoints": [
			{"address": "10.244.1.2:8080", "pod": "shop/web-%d-a", "node": "node-001", "zone": "zone-a", "state": "Ready", "weight": 1, "wantedWeight": 1},
			{"address": "10.244.2.2:8080", "pod": "shop/web-%d-b", "node": "node-002", "zone": "zone-b", "state": "Ready", "weight": 1, "wantedWeight": 1}]}]}`,
			i, i/250, i%250+1, i, i))
	}
	return `{"kind": "ServiceList", "agent": true, "items": [` + strings.Join(items, ",") + "]}"
}

// TestManyNodes: only a few nodes are queried at the same time, and memory use does not grow with the number of
// answers.
func TestManyNodes(t *testing.T) {
	document := manyServices()
	var running, most atomic.Int64
	cfg := largeCluster(t, func(string, []string) reply {
		now := running.Add(1)
		defer running.Add(-1)
		for old := most.Load(); now > old && !most.CompareAndSwap(old, now); old = most.Load() {
		}
		return reply{stdout: document}
	})
	q := fleet.Question{Command: "services"}
	merger, inUse := fleet.NewMerger(q, false), []uint64(nil) // bytes in use after every 100 answers
	arrived := 0
	left, err := Ask(t.Context(), cfg, q, func(a fleet.Answer, _ int) {
		merger.Add(a)
		if arrived++; arrived%100 == 0 {
			inUse = append(inUse, live())
		}
	})
	if err != nil || left != 0 || arrived != 1000 || most.Load() > 10 {
		t.Fatalf("got %d answers, up to %d at the same time; %d nodes not queried, error %v", arrived, most.Load(), left, err)
	}
	r := merger.Report(left, "")
	if len(r.Rows) != 200 || len(r.Rows[0].Nodes) != 1000 || r.Rows[0].Sums[0] != 1000 || len(r.Disagreements) != 0 || r.ExitStatus != 0 {
		t.Errorf("got %d rows, the first is %+v", len(r.Rows), r.Rows[:1])
	}
	// The fake API server runs in this process, so its buffers also count.
	all, end := uint64(1000*len(document)), live()
	if t.Logf("answers of %d bytes; bytes in use after every 100 answers: %d, at the end: %d", all, inUse, end); slices.Max(inUse) > all/2 || end > all/10 {
		t.Error("too many bytes are in use")
	}
}

func live() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestInterrupted: an interrupted command keeps the answers that have arrived.
func TestInterrupted(t *testing.T) {
	cfg := largeCluster(t, func(pod string, _ []string) reply {
		return reply{stdout: wellDocument, hang: pod > "agent-node-099"}
	})
	ctx, cancel := context.WithCancel(t.Context())
	var answered, silent int
	left, err := Ask(ctx, cfg, fleet.Question{Command: "status"}, func(a fleet.Answer, _ int) {
		if a.Error == "" {
			answered++
		} else if silent++; a.Error != "no answer before the command was stopped" {
			t.Errorf("%s: %s", a.Node, a.Error)
		}
		if answered == 100 {
			cancel()
		}
	})
	cancel()
	if err != nil || answered != 100 || answered+silent+left != 1000 || silent > cfg.Parallel {
		t.Errorf("got %d answers; %d nodes silent, %d not queried, error %v", answered, silent, left, err)
	}
}
