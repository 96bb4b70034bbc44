package watch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/watch/watchtest"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
)

const (
	// faultLasts is the duration of a fault: long enough that every delay reaches its maximum and health checks notice the
	// fault.
	faultLasts = 6 * time.Minute
	// recoverWithin is the maximum time until the agent has the current objects after the API server has recovered. The longest
	// delay between attempts is 10 s, and there can be two such delays: before a watch that is rejected as too old, and before
	// the list. Watches are limited to one per 2 s.
	recoverWithin = 23 * time.Second
	// noticeWithin is the maximum time until a fault is noticed. After that time without messages, health checks consider a
	// source stale.
	noticeWithin = 5 * time.Minute
	// restoredWithin is the maximum time until the agent has the objects of a server that was restored from a backup. Such a
	// server takes 3 s to reject a list request for a version that it does not have.
	restoredWithin = recoverWithin + 3*time.Second
	// bookmarksEvery is the interval between messages from a server without changes, plus some time to receive them.
	bookmarksEvery = time.Minute + time.Second
	lookEvery      = 5 * time.Second
	// A list that lacks most of clusterSize Services is implausible.
	clusterSize = 12
)

// outage is an API server with faults, and a source that watches the server. The source runs with production timing in a synctest bubble.
type outage struct {
	*testing.T
	server  *watchtest.Server
	network *watchtest.Network
	certs   *certificates
	api     *API
	view    *watchtest.View
	stop    chan struct{} // ends the repeated actions of a fault
}

type apiFault struct {
	name string
	// begin starts the fault. It cuts all open watches unless keepsWatch is set.
	begin      func(*outage)
	keepsWatch bool
	// end ends the fault, if removing faults from the server and the network is not enough.
	end func(*outage)
	// lasts is the duration of the fault; faultLasts if zero.
	lasts time.Duration
	// within is the maximum recovery time; recoverWithin if zero.
	within time.Duration
	// unseen is true if the fault is not a failure, so health checks do not show it.
	unseen bool
	// visible is true if the agent receives changes despite the fault.
	visible bool
}

func answers(code int, reason metav1.StatusReason, header ...string) func(*outage) {
	return func(o *outage) {
		o.server.SetFault(func(w http.ResponseWriter, _ *http.Request) bool {
			if len(header) == 2 {
				w.Header().Set(header[0], header[1])
			}
			watchtest.Refuse(w, code, reason)
			return true
		})
	}
}

func sends(contentType, body string) func(*outage) {
	return func(o *outage) {
		o.server.SetFault(func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Content-Type", contentType)
			_, _ = io.WriteString(w, body)
			return true
		})
	}
}

func fails(err error) func(*outage) { return func(o *outage) { o.network.Fail(err) } }

var apiFaults = []apiFault{
	{name: "connection refused", begin: fails(syscall.ECONNREFUSED)},
	{name: "no route", begin: fails(syscall.EHOSTUNREACH)},
	{name: "name not resolved", begin: fails(&net.DNSError{Err: "server misbehaving", Name: "api.test", IsTemporary: true})},
	{name: "packets dropped", begin: func(o *outage) { o.network.Drop() }, keepsWatch: true},
	{name: "flapping each second", begin: func(o *outage) { o.repeat(500*time.Millisecond, fails(syscall.ECONNREFUSED), (*outage).mend) }, visible: true, unseen: true},
	{name: "certificate expired", begin: func(o *outage) { o.certs.serve(o.certs.expired); o.network.Fail(nil) }, end: (*outage).goodCertificate},
	{name: "certificate of another authority", begin: func(o *outage) { o.certs.serve(o.certs.foreign); o.network.Fail(nil) }, end: (*outage).goodCertificate},
	{name: "401 unauthorized", begin: answers(http.StatusUnauthorized, metav1.StatusReasonUnauthorized)},
	{name: "403 forbidden", begin: answers(http.StatusForbidden, metav1.StatusReasonForbidden)},
	{name: "404 not found", begin: answers(http.StatusNotFound, metav1.StatusReasonNotFound)},
	{name: "410 gone", begin: answers(http.StatusGone, metav1.StatusReasonExpired)},
	{name: "429 without a time", begin: answers(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests)},
	{name: "429 retry after 1 s", begin: answers(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, "Retry-After", "1")},
	{name: "500 internal error", begin: answers(http.StatusInternalServerError, metav1.StatusReasonInternalError)},
	{name: "503 unavailable", begin: answers(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable)},
	{name: "gateway error page", begin: sends("text/html", "<html>maintenance</html>")},
	{name: "truncated list", begin: sends("application/json", `{"kind":"ServiceList","apiVersion":"v1","metadata":{"resourceVersion":"900"},"items":[`)},
	{name: "list of another kind", begin: sends("application/json", `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"900"},"items":[]}`)},
	{name: "truncated events", begin: sends("application/json", `{"type":"DELETED","object":{"kind":"Service","apiVersion":"v1","metadata":{"namespace":"default","name":"svc-1"`)},
	{name: "connections cut during responses", begin: func(o *outage) {
		o.server.SetFault(func(http.ResponseWriter, *http.Request) bool { panic(http.ErrAbortHandler) })
	}},
	{name: "requests without a response", within: 3*time.Minute + recoverWithin, begin: func(o *outage) {
		o.server.SetFault(func(_ http.ResponseWriter, r *http.Request) bool { <-r.Context().Done(); return true })
	}},
	{name: "watches without an event", within: 3*time.Minute + recoverWithin, begin: func(o *outage) {
		o.server.SetFault(func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Query().Get("watch") == "" {
				return false
			}
			w.Header().Set("Content-Type", contentProtobuf+";stream=watch")
			w.WriteHeader(http.StatusOK)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			return true
		})
	}},
	{name: "empty lists", lasts: holdFor - lookEvery, visible: true, unseen: true, begin: func(o *outage) {
		o.server.Restore(o.server.Version(), testNode())
	}, end: (*outage).putBack},
	{name: "lists that lack most objects", lasts: holdFor - lookEvery, visible: true, unseen: true, begin: func(o *outage) {
		o.server.Restore(o.server.Version(), testNode(), crowdService(1), crowdSlice(1), crowdService(2), crowdSlice(2))
	}, end: (*outage).putBack},
	{name: "responses 10 s late", visible: true, unseen: true, begin: func(o *outage) {
		o.server.SetFault(func(http.ResponseWriter, *http.Request) bool { time.Sleep(10 * time.Second); return false })
	}},
	{name: "watches closed after each event", visible: true, unseen: true, begin: func(o *outage) {
		o.repeat(100*time.Millisecond, func(o *outage) { o.server.CutWatches() })
	}},
}

// TestAPIFaults makes an API server fail in every known way. The source removes nothing during the fault, and has the current
// objects soon after it ends.
func TestAPIFaults(t *testing.T) {
	for _, fault := range apiFaults {
		t.Run(fault.name, func(t *testing.T) {
			certs := newCertificates(t)
			synctest.Test(t, func(t *testing.T) {
				o := newOutage(t, certs)
				fault.begin(o)
				if !fault.keepsWatch {
					o.server.CutWatches()
					synctest.Wait()
				}
				o.server.Delete(crowdService(0), crowdSlice(0))
				o.server.Put(crowdService(clusterSize))
				noticed := o.endure(&fault)
				o.server.Compact()
				close(o.stop)
				synctest.Wait()
				o.mend()
				if fault.end != nil {
					fault.end(o)
				}
				took := o.awaitServices(max(fault.within, recoverWithin), 1, clusterSize+1)
				if noticed < 0 {
					t.Attr("figure", fmt.Sprintf("shows no error, recovered after %v", took))
				} else {
					t.Attr("figure", fmt.Sprintf("noticed after %v, recovered after %v", noticed, took))
				}
				time.Sleep(bookmarksEvery)
				if synctest.Wait(); len(o.api.LastError()) > 0 {
					t.Errorf("LastError still returns errors: %v", o.api.LastError())
				}
			})
		})
	}
}

// TestRestoredAPIServer restores an API server from a backup: its resource versions restart from an older version, and it sends nothing
// on a watch from a newer version.
func TestRestoredAPIServer(t *testing.T) {
	for name, away := range map[string]time.Duration{"immediately": 0, "after a minute": time.Minute, "after an hour": time.Hour} {
		t.Run(name, func(t *testing.T) {
			certs := newCertificates(t)
			synctest.Test(t, func(t *testing.T) {
				o := newOutage(t, certs)
				backup := []runtime.Object{testNode()}
				for i := 2; i < clusterSize; i++ {
					backup = append(backup, crowdService(i), crowdSlice(i))
				}
				if away > 0 {
					o.network.Fail(syscall.ECONNREFUSED)
					time.Sleep(away)
				}
				o.server.Restore(10, backup...)
				o.mend()
				o.server.Put(crowdService(clusterSize))
				t.Attr("figure", fmt.Sprintf("recovered after %v", o.awaitServices(restoredWithin, 2, clusterSize+1)))
				o.server.Put(crowdService(clusterSize + 1))
				o.awaitServices(time.Second, 2, clusterSize+2)
			})
		})
	}
}

func newOutage(t *testing.T, certs *certificates) *outage {
	t.Cleanup(func() { time.Sleep(time.Minute) }) // goroutines that outlive the source, such as dialers, end within this time
	o := &outage{
		T: t, server: watchtest.New(t), certs: certs, view: watchtest.NewView(), stop: make(chan struct{}),
		network: watchtest.NewNetwork(&net.TCPAddr{IP: net.IPv4(192, 0, 2, 1), Port: 6443}),
	}
	for i := range clusterSize {
		o.server.Put(crowdService(i), crowdSlice(i))
	}
	o.server.Put(testNode())
	o.goodCertificate()
	o.server.TLS = certs.config()
	o.server.StartAt(o.network)
	var err error
	o.api, err = newAPI(&rest.Config{
		Host: "https://192.0.2.1:6443", Dial: o.network.Dial, TLSClientConfig: rest.TLSClientConfig{CAData: certs.authority},
	}, Options{}, defaultTiming())
	if err != nil {
		t.Fatal(err)
	}
	o.api.contacts.lookup = func(context.Context, string, string) ([]netip.Addr, error) { return nil, errors.New("no name service") }
	run(t, o.api)
	o.awaitServices(recoverWithin, 0, clusterSize)
	time.Sleep(2 * time.Minute) // the reflector lists again only if a watch ends within its first second
	return o
}

func crowdService(i int) runtime.Object {
	return testService(fmt.Sprintf("svc-%d", i), func(s *v1.Service) {
		s.Spec.ClusterIP = fmt.Sprintf("10.96.0.%d", 10+i)
		s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
	})
}

func crowdSlice(i int) runtime.Object {
	return testSlice(fmt.Sprintf("svc-%d-1", i), fmt.Sprintf("svc-%d", i), func(s *discoveryv1.EndpointSlice) {
		s.Endpoints[0].Addresses[0] = fmt.Sprintf("10.244.1.%d", 10+i)
	})
}

// repeat performs the actions in turn, with pauses, until the fault ends.
func (o *outage) repeat(pause time.Duration, things ...func(*outage)) {
	go func() {
		for i := 0; ; i++ {
			things[i%len(things)](o)
			select {
			case <-o.stop:
				return
			case <-time.After(pause):
			}
		}
	}()
}

func (o *outage) mend() {
	o.server.SetFault(nil)
	o.network.Mend()
}

func (o *outage) putBack() {
	for i := 1; i < clusterSize; i++ {
		o.server.Put(crowdService(i), crowdSlice(i))
	}
}

func (o *outage) goodCertificate() { o.certs.serve(o.certs.good) }

func (o *outage) endure(fault *apiFault) (noticed time.Duration) {
	o.Helper()
	noticed = -1
	for start := time.Now(); time.Since(start) < cmp.Or(fault.lasts, faultLasts); time.Sleep(lookEvery) {
		synctest.Wait()
		if noticed < 0 && o.noticed() {
			noticed = time.Since(start)
		}
		o.view.Take(o.api.Take())
		for i := 1; i < clusterSize; i++ {
			if svc := o.view.Services[crowdID(i)]; svc == nil || len(svc.Slices) != 1 {
				o.Fatalf("%v after the fault began, the source removed Service %d or its endpoints:\n%s", time.Since(start), i, o.view)
			}
		}
		if o.view.Services[crowdID(0)] == nil != fault.visible && time.Since(start) > time.Minute {
			o.Fatalf("want changes visible during the fault: %v, got\n%s", fault.visible, o.view)
		}
	}
	if !fault.unseen && (noticed < 0 || noticed > noticeWithin+lookEvery) {
		o.Errorf("the fault was noticed after %v (negative means never), want at most %v", noticed, noticeWithin)
	}
	return noticed
}

func crowdID(i int) model.ServiceID {
	return model.ServiceID{Namespace: "default", Name: fmt.Sprintf("svc-%d", i)}
}

func (o *outage) noticed() bool {
	if len(o.api.LastError()) > 0 {
		return true
	}
	for _, at := range o.api.LastContact() {
		if time.Since(at) > noticeWithin {
			return true
		}
	}
	return false
}

func (o *outage) awaitServices(within time.Duration, first, last int) time.Duration {
	o.Helper()
	start := time.Now()
	for {
		synctest.Wait()
		o.view.Take(o.api.Take())
		complete := len(o.view.Services) == last-first
		for i := first; i < last; i++ {
			complete = complete && o.view.Services[crowdID(i)] != nil
		}
		switch took := time.Since(start); {
		case complete && o.api.Synced():
			return took
		case took > within:
			o.Fatalf("the source did not recover within %v; errors %v, got\n%s", within, o.api.LastError(), strings.TrimSpace(o.view.String()))
		}
		time.Sleep(100 * time.Millisecond)
	}
}
