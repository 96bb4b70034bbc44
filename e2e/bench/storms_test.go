package bench

import (
	"net/http"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-ipvs/kube-ipvs/internal/watch/watchtest"
)

const (
	// away is how long the API server does not answer.
	away = time.Hour
	// podsOfNode is the default limit of a kubelet.
	podsOfNode = 110
	booting    = 30 * time.Second
)

// storms measures periods with many changes, one after another. update sends an EndpointSlice of an ordinary Service.
func (b *bench) storms(t *testing.T, result *Result) {
	for _, storm := range []struct {
		name string
		run  func(update func(n, replaced, endpoints int))
	}{
		{"all endpoints are replaced, two of each Service at a time", func(update func(n, replaced, endpoints int)) {
			for replaced := 2; replaced <= endpointsEach; replaced += 2 {
				for _, n := range b.random.Perm(b.services) {
					update(n, replaced, endpointsEach)
				}
			}
		}},
		{"all endpoints disappear", func(update func(n, replaced, endpoints int)) {
			for n := range b.services {
				update(n, 0, 0)
			}
		}},
		{"all endpoints return", func(update func(n, replaced, endpoints int)) {
			for n := range b.services {
				update(n, 0, endpointsEach)
			}
		}},
		{"110 pods of a node become ready within 30 s", func(update func(n, replaced, endpoints int)) {
			for n := range podsOfNode {
				update(n%b.services, 0, endpointsEach+1)
				time.Sleep(booting / podsOfNode)
			}
		}},
		{"the API server is away for an hour", func(func(n, replaced, endpoints int)) {
			b.api.SetFault(func(w http.ResponseWriter, _ *http.Request) bool {
				watchtest.Refuse(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable)
				return true
			})
			b.api.CutWatches()
			time.Sleep(away)
			b.api.SetFault(nil)
		}},
	} {
		measured := Storm{Name: storm.name}
		used, began := b.used(t), monotonic()
		storm.run(func(n, replaced, endpoints int) {
			measured.Updates++
			b.api.Put(ordinarySlice(n, replaced, endpoints))
		})
		measured.Took = InSeconds(b.calm(t) - began)
		measured.CPU = InSeconds(b.used(t) - used)
		result.Storms = append(result.Storms, measured)
	}
}

// calm waits until the program uses less than 5% of the CPU for a second, and returns when that second began.
func (b *bench) calm(t *testing.T) time.Duration {
	t.Helper()
	for {
		began, used := monotonic(), b.used(t)
		time.Sleep(time.Second)
		if b.used(t)-used < 50*time.Millisecond {
			return began
		}
	}
}
