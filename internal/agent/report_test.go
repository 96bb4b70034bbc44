package agent_test

import (
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

func TestReportOfWhatIsServed(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.start()
		web := compiletest.Service("web", "10.96.0.1", "10.244.0.1", "10.244.0.2")
		w.put(web)
		r := w.lastReport()
		if served := r.Served[web.ID]; served.Service == nil || len(served.Frontends) != 1 || served.Frontends[0].Key != tcp("10.96.0.1:80") {
			t.Errorf("served %+v", served)
		}
		if r.VirtualServers != 1 || r.Draining != 0 {
			t.Errorf("got %d virtual servers and %d draining endpoints", r.VirtualServers, r.Draining)
		}

		w.fake.SetConnections(tcp("10.96.0.1:80"), netip.MustParseAddrPort("10.244.0.2:8080"), 3, 0)
		w.put(only(web, web.Slices[0].Endpoints[0]))
		if r := w.lastReport(); r.Draining != 1 {
			t.Errorf("got %d draining endpoints, want only the removed endpoint that has connections", r.Draining)
		}
		w.remove("web")
		r = w.lastReport()
		if served, reported := r.Served[model.ServiceID{Namespace: "default", Name: "web"}]; !reported || served.Service != nil || r.VirtualServers != 0 {
			t.Errorf("after the Service's deletion, the report has served %+v (present: %t) and %d virtual servers", served, reported, r.VirtualServers)
		}
	})
}

// TestLogInUserspace: in user space, the log names neither addresses, nor IPVS, nor sets of the kernel: there are none.
func TestLogInUserspace(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.config.Compile.Mode = kernel.Userspace
		w.fake.OnOp(nil) // its order of writes needs rules
		w.start()
		w.put(compiletest.Service("web", "10.96.0.1", "10.244.0.1"))
		found := false
		for _, line := range w.logs.All() {
			found = found || line.Message == "add endpoint 10.244.0.1:8080 to port 10.96.0.1:80/tcp in the agent's process, weight 1"
			for _, command := range []string{"ip addr", "ipvsadm", "ipset"} {
				if strings.Contains(line.Message, command) {
					t.Errorf("logged %q", line.Message)
				}
			}
		}
		if !found {
			t.Errorf("the log lacks the endpoint: %v", w.logs.All())
		}
	})
}

func TestFailedBootstrapIsLoggedOnce(t *testing.T) {
	calmBubble(t, func(w *world) {
		w.services = all(web("10.244.0.1"), clusterDNS())
		for range 4 { // both families' chains, twice
			w.fake.FailNext(kernel.KindRules, syscall.EBUSY)
		}
		w.start()
		if logged := w.logs.FilterMessage("operation failed").Len(); logged != 2 {
			t.Errorf("logged %d times, want once per family", logged)
		}
		w.sleep(time.Second)
		w.is()
	})
}
