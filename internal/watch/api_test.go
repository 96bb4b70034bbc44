package watch

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/watch/watchtest"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
)

func newBackoff() wait.Backoff {
	return wait.Backoff{Duration: 20 * time.Millisecond, Cap: 200 * time.Millisecond, Factor: 2, Jitter: 1, Steps: 5}
}

const (
	webText = "default/web [10.96.0.10] http=80/tcp\ndefault/web  web-1 IPv4 http=8080/tcp 10.244.1.5+ready+serving"
	apiText = "default/api [10.96.0.10] http=80/tcp"
	ownNode = "node n1 [192.0.2.1] pods=[10.244.1.0/24]"
)

func testNode() *v1.Node {
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: v1.NodeSpec{PodCIDRs: []string{"10.244.1.0/24"}},
		Status: v1.NodeStatus{Addresses: []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "192.0.2.1"}}},
	}
}

func mustAPI(t *testing.T, config *rest.Config, timing timing) *API {
	t.Helper()
	api, err := newAPI(config, Options{UserAgent: "kube-ipvs/test"}, timing)
	if err != nil {
		t.Fatal(err)
	}
	return api
}

// startAPI starts a server with one Service, one slice and one Node, and a source that has read them.
func startAPI(t *testing.T, timing timing, prepare func(*watchtest.Server)) (*watchtest.Server, *API, *watchtest.View) {
	t.Helper()
	server := watchtest.New(t)
	server.Put(testService("web", nil), testSlice("web-1", "web", nil), testNode())
	if prepare != nil {
		prepare(server)
	}
	api := mustAPI(t, watchtest.Config(server.Start()), timing)
	run(t, api)
	v := watchtest.NewView()
	v.AwaitText(t, api, "first list", webText+"\n"+ownNode)
	return server, api, v
}

func TestAPIFollowsTheServer(t *testing.T) {
	for name, noStreaming := range map[string]bool{"streamed lists": false, "plain lists": true} {
		t.Run(name, func(t *testing.T) {
			server, api, v := startAPI(t, quick(), func(s *watchtest.Server) { s.NoStreaming = noStreaming })
			server.Put(testService("api", nil))
			v.AwaitText(t, api, "added", apiText+"\n"+webText+"\n"+ownNode)
			server.Delete(testSlice("web-1", "web", nil))
			v.AwaitText(t, api, "slice deleted", apiText+"\ndefault/web [10.96.0.10] http=80/tcp\n"+ownNode)
			server.Put(testService("web", func(s *v1.Service) { s.Spec.Ports[0].Port = 0 }))
			v.Await(t, api, "spoilt", func() bool { return len(v.Services) == 1 && len(v.Problems[webID.Ref()]) > 0 })
			server.Delete(testService("web", nil))
			v.AwaitText(t, api, "deleted", apiText+"\n"+ownNode)

			for _, kind := range listedKinds {
				if api.LastContact()[kind].IsZero() {
					t.Errorf("LastContact has no entry for %s", kind)
				}
			}
			if errs := api.LastError(); len(errs) > 0 {
				t.Error(errs)
			}
		})
	}
}

func TestAPISelectors(t *testing.T) {
	server, _, _ := startAPI(t, quick(), nil)
	want := map[string][2]string{
		"/api/v1/services":                         {"!service.kubernetes.io/service-proxy-name", "spec.clusterIP!=None"},
		"/apis/discovery.k8s.io/v1/endpointslices": {"!service.kubernetes.io/service-proxy-name,!service.kubernetes.io/headless", ""},
		"/api/v1/nodes":                            {"", ""},
	}
	for _, r := range server.Requests() {
		q := r.URL.Query()
		if got := [2]string{q.Get("labelSelector"), q.Get("fieldSelector")}; got != want[r.URL.Path] {
			t.Errorf("%s: got selectors %q, want %q", r.URL.Path, got, want[r.URL.Path])
		}
		if got := r.Header.Get("User-Agent"); got != "kube-ipvs/test" {
			t.Errorf("got user agent %q, want kube-ipvs/test", got)
		}
		if got := r.Header.Get("Accept"); !strings.HasPrefix(got, contentProtobuf) {
			t.Errorf("the Accept header is %q, want protobuf first", got)
		}
		if r.ProtoMajor != 2 {
			t.Errorf("the request for %s used %s, want HTTP/2", r.URL.Path, r.Proto)
		}
	}
}

// changeUnheard changes the cluster without events, so that only a new list shows the change.
func changeUnheard(server *watchtest.Server) (want string) {
	server.Delete(testService("web", nil))
	server.Put(testService("api", nil))
	server.Compact()
	return apiText + "\n" + ownNode
}

// After the server loses its history, only objects deleted in the meantime disappear.
func TestAPIRelistsAfterGone(t *testing.T) {
	server, api, v := startAPI(t, quick(), nil)
	server.SetFault(func(w http.ResponseWriter, _ *http.Request) bool {
		watchtest.Refuse(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable)
		return true
	})
	server.CutWatches()
	want := changeUnheard(server)
	server.SetFault(nil)
	v.AwaitText(t, api, "after 410", want)
}

func TestAPIEmptyList(t *testing.T) {
	server, api, v := startAPI(t, quick(), nil)
	server.Delete(testService("web", nil), testSlice("web-1", "web", nil))
	server.Compact()
	server.CutWatches()
	v.AwaitText(t, api, "an empty list counts", ownNode)
}

// No failure removes anything. LastError reports the failure, and the source recovers.
func TestAPISurvivesFailures(t *testing.T) {
	status := func(code int, reason metav1.StatusReason, header ...string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, _ *http.Request) bool {
			if len(header) == 2 {
				w.Header().Set(header[0], header[1])
			}
			watchtest.Refuse(w, code, reason)
			return true
		}
	}
	raw := func(contentType, body string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, _ *http.Request) bool {
			w.Header().Set("Content-Type", contentType)
			_, _ = io.WriteString(w, body)
			return true
		}
	}
	for name, fault := range map[string]func(http.ResponseWriter, *http.Request) bool{
		"429":             status(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests),
		"429 retry after": status(http.StatusTooManyRequests, metav1.StatusReasonTooManyRequests, "Retry-After", "1"),
		"500":             status(http.StatusInternalServerError, metav1.StatusReasonInternalError),
		"503":             status(http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable),
		"403":             status(http.StatusForbidden, metav1.StatusReasonForbidden),
		"401":             status(http.StatusUnauthorized, metav1.StatusReasonUnauthorized),
		"404":             status(http.StatusNotFound, metav1.StatusReasonNotFound),
		"gateway's page":  raw("text/html", "<html>maintenance</html>"),
		"no kind":         raw("application/json", "{}"),
		"success Status":  raw("application/json", `{"kind":"Status","apiVersion":"v1","status":"Success"}`),
		"other kind":      raw("application/json", `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"900"},"items":[]}`),
		"cut JSON":        raw("application/json", `{"kind":"ServiceList","apiVersion":"v1","metadata":{"resourceVersion":"900"},"items":[`),
		"cut connection": func(http.ResponseWriter, *http.Request) bool {
			panic(http.ErrAbortHandler)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, api, v := startAPI(t, quick(), nil)
			var asked atomic.Int64
			again := make(chan struct{})
			server.SetFault(func(w http.ResponseWriter, r *http.Request) bool {
				if asked.Add(1) == 8 {
					close(again)
				}
				return fault(w, r)
			})
			server.CutWatches()
			select {
			case <-again:
			case <-time.After(watchtest.Deadline):
				t.Fatalf("%d requests", asked.Load())
			}
			if v.Take(api.Take()); v.String() != webText+"\n"+ownNode {
				t.Errorf("the failure changed the model to\n%s", v)
			}
			want := changeUnheard(server)
			server.SetFault(nil)
			v.AwaitText(t, api, "afterwards", want)
			for kind, err := range api.LastError() {
				if kind == model.KindService {
					t.Errorf("LastError still returns %v", err)
				}
			}
		})
	}
}

// An incomplete event is ignored.
func TestAPIIgnoresTruncatedEvent(t *testing.T) {
	server, api, v := startAPI(t, quick(), nil)
	var cuts atomic.Int64
	server.SetFault(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "services") || r.URL.Query().Get("watch") == "" || cuts.Add(1) > 3 {
			return false
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"type":"DELETED","object":{"kind":"Service","apiVersion":"v1","metadata":{"namespace":"default","name":"web"`)
		w.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	})
	server.CutWatches()
	server.Put(testService("api", nil))
	v.AwaitText(t, api, "after three cuts", apiText+"\n"+webText+"\n"+ownNode)
}

// HTTP/2 pings detect a connection that stays open but drops all packets.
func TestAPIDetectsBlackHole(t *testing.T) {
	server := watchtest.New(t)
	server.Put(testService("web", nil), testSlice("web-1", "web", nil), testNode())
	p := watchtest.NewProxy(t, server.Start().Listener.Addr().String())
	api := mustAPI(t, &rest.Config{Host: p.URL(), TLSClientConfig: rest.TLSClientConfig{Insecure: true}}, quick())
	run(t, api)
	v := watchtest.NewView()
	v.AwaitText(t, api, "first list", webText+"\n"+ownNode)

	p.BlackHole()
	server.Put(testService("api", nil))
	awaitError(t, api)
	if v.Take(api.Take()); v.String() != webText+"\n"+ownNode {
		t.Errorf("silence changed the model to\n%s", v)
	}
	start := time.Now()
	p.Open()
	v.AwaitText(t, api, "after the black hole", apiText+"\n"+webText+"\n"+ownNode)
	t.Logf("recovered in %v", time.Since(start))
}

// The source tolerates a server that is unavailable at the start and again later.
func TestAPISurvivesUnavailableServer(t *testing.T) {
	server := watchtest.New(t)
	server.Put(testService("web", nil), testSlice("web-1", "web", nil), testNode())
	p := watchtest.NewProxy(t, server.Start().Listener.Addr().String())
	p.CutOff()
	api := mustAPI(t, &rest.Config{Host: p.URL(), TLSClientConfig: rest.TLSClientConfig{Insecure: true}}, quick())
	run(t, api)
	awaitError(t, api)
	if api.Synced() {
		t.Error("the source is synced without a server")
	}
	p.Open()
	v := watchtest.NewView()
	v.AwaitText(t, api, "first list", webText+"\n"+ownNode)
	for range 3 {
		p.CutOff()
		awaitError(t, api)
		p.Open()
	}
	want := changeUnheard(server)
	server.CutWatches()
	v.AwaitText(t, api, "after flapping", want)
}

func awaitError(t *testing.T, api *API) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, watchtest.Deadline, true, func(context.Context) (bool, error) {
		return len(api.LastError()) > 0, nil
	})
	if err != nil {
		t.Fatal("LastError reports no error")
	}
}

// The source stops promptly, even during the reflector's backoff.
func TestAPIStopsDuringBackoff(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close() // connections are now refused
	timing := quick()
	timing.backoff = wait.Backoff{Duration: time.Hour, Factor: 1, Steps: 1}
	api := mustAPI(t, &rest.Config{Host: "https://" + l.Addr().String()}, timing)
	run(t, api) // the cleanup expects Run to return within seconds
	awaitError(t, api)
}

// The source retries if a server responds to pings but not to requests, or sends nothing on a watch.
func TestAPIRetriesOnSilentServer(t *testing.T) {
	timing := quick()
	timing.silence = 300 * time.Millisecond
	server, api, v := startAPI(t, timing, nil)
	var stalled atomic.Int64
	server.SetFault(func(w http.ResponseWriter, r *http.Request) bool {
		if n := stalled.Add(1); n > 12 {
			return false
		} else if n%2 == 0 {
			w.Header().Set("Content-Type", contentProtobuf+";stream=watch")
			w.WriteHeader(http.StatusOK)
			w.(http.Flusher).Flush()
		}
		select {
		case <-r.Context().Done():
		case <-time.After(watchtest.Deadline):
		}
		return true
	})
	server.CutWatches()
	server.Put(testService("api", nil))
	v.AwaitText(t, api, "after silence", apiText+"\n"+webText+"\n"+ownNode)
}

// A server that closes every watch after one event does not receive a thousand watches per second.
func TestAPILimitsWatchRate(t *testing.T) {
	timing := quick()
	timing.watchRate = 2
	server, api, v := startAPI(t, timing, nil)
	var opened atomic.Int64
	server.SetFault(func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Query().Get("watch") == "" {
			return false
		}
		if strings.HasSuffix(r.URL.Path, "services") {
			opened.Add(1)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"type":"BOOKMARK","object":{"kind":%q,"apiVersion":%q,"metadata":{"resourceVersion":"900"}}}`,
			map[string]string{"services": "Service", "endpointslices": "EndpointSlice", "nodes": "Node"}[path.Base(r.URL.Path)],
			strings.TrimPrefix(strings.TrimPrefix(r.URL.Path[:strings.LastIndex(r.URL.Path, "/")], "/apis/"), "/api/"))
		return true
	})
	server.CutWatches()
	<-time.After(time.Second) // the rate is measured over one second
	if n := opened.Load(); n > 10 {
		t.Errorf("%d watches in one second, want at most 10", n)
	}
	if v.Take(api.Take()); v.String() != webText+"\n"+ownNode {
		t.Errorf("got\n%s", v)
	}
}

// The source also checks eligibility itself, in case the server ignores the selectors.
func TestAPIServesOnlyEligibleObjects(t *testing.T) {
	server, api, v := startAPI(t, quick(), nil)
	server.Put(
		testService("headless", func(s *v1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "None", nil }),
		testSlice("fq", "web", func(s *discoveryv1.EndpointSlice) { s.AddressType = discoveryv1.AddressTypeFQDN }),
		testService("api", nil),
	)
	v.AwaitText(t, api, "only eligible objects", apiText+"\n"+webText+"\n"+ownNode)
}
