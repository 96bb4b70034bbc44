package telemetry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	v1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

func newTestEvents(t *testing.T, s *apiServer, log *zap.Logger) *loop {
	t.Helper()
	cfg := testConfig()
	cfg.API, cfg.Log = &rest.Config{Host: s.url}, log
	e, err := newEvents(cfg, newMetrics(cfg))
	if err != nil {
		t.Fatal(err)
	}
	e.spread, e.retry = 0, time.Millisecond
	return &loop{e, agent.NewKnownProblems(cfg.Node)}
}

type loop struct {
	*events
	known *agent.KnownProblems
}

func (l *loop) observe(r *agent.Report, failing bool) {
	l.known.Update(r)
	l.events.observe(r, failing)
}

func startEvents(t *testing.T, e *events) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); e.run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
}

func found(id model.ServiceID, problems ...model.Problem) *agent.Report {
	return &agent.Report{Problems: map[model.ServiceID][]model.Problem{id: problems}}
}

func eventually(t *testing.T, e *events, result string, want float64) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		got := values(t, e.metrics)["kube_ipvs_events_total result="+result]
		if got == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("got %v Events with result %s, want %v", got, result, want)
		}
	}
}

func TestEventsOfAProblem(t *testing.T) {
	s := newAPIServer(t)
	e := newTestEvents(t, s, zap.NewNop())
	startEvents(t, e.events)
	wrong := problemOf(web, "spec.ports[0].port", "not served")

	e.observe(found(web, wrong), false)
	got := s.next()
	if !strings.HasPrefix(got.Name, "web.") || got.EventTime.IsZero() {
		t.Errorf("the Event has name %q and time %s", got.Name, got.EventTime)
	}
	want := &eventsv1.Event{
		TypeMeta:            metav1.TypeMeta{Kind: "Event", APIVersion: "events.k8s.io/v1"},
		ObjectMeta:          metav1.ObjectMeta{Namespace: "default", Name: got.Name},
		EventTime:           got.EventTime,
		ReportingController: "kube-ipvs", ReportingInstance: "node-1",
		Action: "SyncService", Reason: "ServiceProblem", Type: "Warning",
		Regarding: v1.ObjectReference{Kind: "Service", APIVersion: "v1", Namespace: "default", Name: "web", UID: "uid-web", ResourceVersion: "7"},
		Note:      "Service default/web: spec.ports[0].port: not served",
	}
	if d := gocmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}

	// A repeated problem or a sync of another Service does not cause an Event.
	e.observe(found(web, wrong), false)
	e.observe(found(dns), false)
	changed := problemOf(web, "spec.ports[0].port", "not served, for another reason")
	e.observe(found(web, changed), false)
	if got := s.next(); got.Type != "Warning" || got.Note != changed.String() {
		t.Errorf("after a change, got %s Event %q, want a Warning with the new text", got.Type, got.Note)
	}
	e.observe(found(web), false)
	if got := s.next(); got.Type != "Normal" || got.Reason != "ServiceProblemResolved" || got.Note != "resolved: "+changed.String() {
		t.Errorf("after the resolution, got %s Event %s: %q", got.Type, got.Reason, got.Note)
	}
	eventually(t, e.events, resultPosted, 3)
	if n := s.countPosts(); n != 3 {
		t.Errorf("%d posts, want 3", n)
	}
}

// TestEventsOfObjects: a problem with a slice becomes an Event on its Service. Problems of other nodes and of files do
// not cause Events.
func TestEventsOfObjects(t *testing.T) {
	s := newAPIServer(t)
	e := newTestEvents(t, s, zap.NewNop())
	slice := model.Problem{Object: webSlice, Service: web, Field: "endpoints[0]", Reason: "wrong"}
	otherNode, file := model.NodeRef("node-2"), model.FileRef("web.yaml")
	e.observe(&agent.Report{Unreadable: map[model.ObjectRef][]model.Problem{
		webSlice:  {slice},
		otherNode: {{Object: otherNode, Reason: "wrong"}},
		file:      {{Object: file, Reason: "wrong"}},
	}}, false)
	if e.queue.len() != 1 {
		t.Fatalf("the queue contains %v, want one notice", e.queue)
	}
	startEvents(t, e.events)
	if got := s.next(); got.Regarding.Name != "web" || got.Note != slice.String() {
		t.Errorf("%+v", got)
	}
}

// TestNodesShareEvents: if two nodes find the same problem, they post only one Event.
func TestNodesShareEvents(t *testing.T) {
	s := newAPIServer(t)
	first, second := newTestEvents(t, s, zap.NewNop()), newTestEvents(t, s, zap.NewNop())
	second.node = "node-2"
	svc := &v1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "uid-web"}}
	about := serviceObject(svc)
	n := notice{topic: aboutService, problem: problemOf(web, "spec", "wrong")}
	now := time.Unix(1_800_000_000, 0)
	a, b := newEvent(n, about, "node-1", now), newEvent(n, about, "node-2", now.Add(time.Minute))
	if a.Name != b.Name {
		t.Errorf("names %s and %s, want the same name", a.Name, b.Name)
	}
	for what, other := range map[string]*eventsv1.Event{
		"a later time":    newEvent(n, about, "node-1", now.Add(eventNameLifetime)),
		"the end":         newEvent(notice{topic: aboutService, problem: n.problem, resolved: true}, about, "node-1", now),
		"another problem": newEvent(notice{topic: aboutService, problem: problemOf(web, "spec", "else")}, about, "node-1", now),
	} {
		if other.Name == a.Name {
			t.Errorf("the Event for %s must have a different name than %s", what, a.Name)
		}
	}
	// The server already has Events with the names of this period and the next, in case the period ends during the test.
	for _, at := range []time.Time{time.Now(), time.Now().Add(eventNameLifetime)} {
		s.names[newEvent(n, about, "node-1", at).Name] = true
	}
	for _, e := range []*loop{first, second} {
		startEvents(t, e.events)
		e.observe(found(web, n.problem), false)
		eventually(t, e.events, resultDuplicate, 1)
	}
}

type posted struct{ Kind, Name, Namespace, UID, Type, Reason, Action, Note string }

func onWeb(kind, reason, action, note string) posted {
	return posted{"Service", "web", "default", "uid-web", kind, reason, action, note}
}

func onNode(kind, reason, action, note string) posted {
	return posted{"Node", "node-1", "default", "node-1", kind, reason, action, note}
}

const (
	foreignServer = "Service default/web: not served at 10.96.0.1:443/tcp on node node-1: a virtual server of another program has this address " +
		"and port; delete it on the node (ipvsadm -D -t 10.96.0.1:443) or give the Service another address"
	portInUse = "Service default/web: spec.healthCheckNodePort: node node-1 does not answer health checks, " +
		"so load balancers will not use it: 0.0.0.0:30999: taken"
	failingSyncs = "Node node-1: syncs keep failing, so Services on this node may be out of date; retrying; last error: input/output error"
)

var nodeEvents = []struct {
	what string
	do   func(*loop)
	want []posted
}{
	{"the start", func(e *loop) { e.started("v1.2.3", map[inet.Family]error{inet.IPv6: errors.New("no ip6tables")}) }, []posted{
		onNode("Normal", "Starting", "Start", "kube-ipvs v1.2.3 has started"),
		onNode("Warning", "FamilyNotServed", "Start", "Node node-1: IPv6 Services are not served on this node: no ip6tables"),
	}},
	{"another program's virtual server", func(e *loop) { e.observe(&agent.Report{Foreign: foreignAtWeb}, false) },
		[]posted{onWeb("Warning", "ForeignVirtualServer", "SyncService", foreignServer)}},
	{"removed, after syncs that still saw it", func(e *loop) {
		e.observe(&agent.Report{Foreign: foreignAtWeb}, false)
		e.observe(&agent.Report{}, false)
		e.observe(&agent.Report{}, false)
	}, []posted{onWeb("Normal", "ForeignVirtualServerRemoved", "SyncService", "resolved: "+foreignServer)}},
	{"a health check port in use", func(e *loop) { e.observeHealthPort(web, errors.New("0.0.0.0:30999: taken")) },
		[]posted{onWeb("Warning", "FailedToStartServiceHealthcheck", "Listen", portInUse)}},
	{"free again", func(e *loop) { e.observeHealthPort(web, nil); e.observeHealthPort(dns, nil) },
		[]posted{onWeb("Normal", "StartedServiceHealthcheck", "Listen", "resolved: "+portInUse)}},
	{"syncs have been failing", func(e *loop) {
		e.observe(&agent.Report{Err: errIO}, false)
		e.observe(&agent.Report{Err: errIO}, true)
		e.observe(&agent.Report{Err: errors.New("another error")}, true)
	}, []posted{onNode("Warning", "SyncFailing", "SyncNode", failingSyncs)}},
	{"syncs succeed", func(e *loop) { e.observe(&agent.Report{}, false) },
		[]posted{onNode("Normal", "SyncRecovered", "SyncNode", "resolved: "+failingSyncs)}},
	{"a wrong Node object", func(e *loop) {
		e.observe(&agent.Report{Unreadable: map[model.ObjectRef][]model.Problem{
			thisNode: {{Object: thisNode, Field: "spec.podCIDR", Reason: "wrong"}},
		}}, false)
	}, []posted{onNode("Warning", "NodeProblem", "SyncNode", "Node node-1: spec.podCIDR: wrong")}},
	{"a missing scheduler", func(e *loop) {
		lack := model.Problem{Object: thisNode, Field: "--ipvs-scheduler", Value: "twos", Reason: "missing"}
		e.observe(&agent.Report{NodeProblems: []model.Problem{lack}}, false)
		e.observe(&agent.Report{NodeProblems: []model.Problem{lack}}, false)
	}, []posted{onNode("Warning", "NodeProblem", "SyncNode", `Node node-1: --ipvs-scheduler "twos": missing`)}},
	{"its module loaded", func(e *loop) { e.observe(&agent.Report{}, false) },
		[]posted{onNode("Normal", "NodeProblemResolved", "SyncNode", `resolved: Node node-1: --ipvs-scheduler "twos": missing`)}},
}

var foreignAtWeb = map[kernel.ServerKey]model.ServicePortRef{key("10.96.0.1:443"): {Service: web, Port: "https"}}

func TestEventsOfThisNodeOnly(t *testing.T) {
	s := newAPIServer(t)
	e := newTestEvents(t, s, zap.NewNop())
	startEvents(t, e.events)
	for _, step := range nodeEvents {
		step.do(e)
		var got []posted
		for range step.want {
			event := s.next()
			about := event.Regarding
			got = append(got, posted{about.Kind, about.Name, event.Namespace, string(about.UID), event.Type, event.Reason, event.Action, event.Note})
		}
		if d := gocmp.Diff(step.want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", step.what, d)
		}
	}
	eventually(t, e.events, resultPosted, 11)
	if n := s.countPosts(); n != 11 {
		t.Errorf("%d posts, want 11", n)
	}
	if len(e.foreign)+len(e.unanswered) != 0 {
		t.Errorf("resolved problems are still remembered: %v, %v", e.foreign, e.unanswered)
	}
}

// TestEventNamesAreValid: the name of a node and the name of an Event have the same maximum length.
func TestEventNamesAreValid(t *testing.T) {
	for _, name := range []string{"node-1", strings.Repeat("a", 253), strings.Repeat("a", 199) + "." + "bb" + strings.Repeat("-a", 20)} {
		n := notice{topic: aboutStart, problem: model.Problem{Object: model.NodeRef(name), Reason: "started"}, resolved: true}
		e := newEvent(n, nodeObject(name), name, start)
		if wrong := validation.NameIsDNSSubdomain(e.Name, false); len(wrong) > 0 || len(e.ReportingInstance) > maxInstance {
			t.Errorf("%s: %v, instance %s", e.Name, wrong, e.ReportingInstance)
		}
	}
}

func TestNoEventsOnDeletedServices(t *testing.T) {
	s := newAPIServer(t)
	e := newTestEvents(t, s, zap.NewNop())
	gone := model.ServiceID{Namespace: "default", Name: "gone"}
	startEvents(t, e.events)
	e.observe(found(gone, problemOf(gone, "spec", "wrong")), false)
	eventually(t, e.events, resultDropped, 1)
	if n := s.countPosts(); n != 0 {
		t.Errorf("%d posts", n)
	}
}

func TestFailedPosts(t *testing.T) {
	s := newAPIServer(t)
	core, logs := observer.New(zap.WarnLevel)
	e := newTestEvents(t, s, zap.New(core))
	startEvents(t, e.events)

	s.refuseNext(2, http.StatusInternalServerError)
	e.observe(found(web, problemOf(web, "spec", "one")), false)
	if got := s.next(); !strings.HasSuffix(got.Note, "one") {
		t.Errorf("after two failed posts, got %q", got.Note)
	}
	if logs.Len() != 0 {
		t.Errorf("logged %v, want nothing", logs.All())
	}
	// A 403 is permanent: the agent does not retry, and logs only one line for all Events.
	before := s.countPosts()
	s.refuseNext(2, http.StatusForbidden)
	e.observe(found(web, problemOf(web, "spec", "two")), false)
	eventually(t, e.events, resultFailed, 1)
	e.observe(found(web, problemOf(web, "spec", "three")), false)
	eventually(t, e.events, resultFailed, 2)
	if n := s.countPosts() - before; n != 2 {
		t.Errorf("%d posts, want 2", n)
	}
	if logs.Len() != 1 || !strings.Contains(logs.All()[0].Message, "permission to list services") {
		t.Errorf("logged %v, want one line that names the required permissions", logs.All())
	}
}

// TestObserveNeverBlocks: if nothing sends the notices, the queue stays bounded.
func TestObserveNeverBlocks(t *testing.T) {
	s := newAPIServer(t)
	e := newTestEvents(t, s, zap.NewNop())
	for i := range maxEventsWaiting + 10 {
		id := model.ServiceID{Namespace: "default", Name: fmt.Sprint("web-", i)}
		e.observe(found(id, problemOf(id, "spec", "wrong")), false)
	}
	if e.queue.len() != maxEventsWaiting {
		t.Errorf("%d notices in the queue, want %d", e.queue.len(), maxEventsWaiting)
	}
	eventually(t, e.events, resultDropped, 10)
}

// TestShortProblemsPostNothing: in the queue, a problem and its resolution cancel each other out.
func TestShortProblemsPostNothing(t *testing.T) {
	s := newAPIServer(t)
	e := newTestEvents(t, s, zap.NewNop())
	wrong := problemOf(web, "spec", "wrong")
	for range 3 {
		e.observe(found(web, wrong), false)
		e.observe(found(web), false)
	}
	if e.queue.len() != 0 {
		t.Errorf("waiting: %v", e.queue)
	}
}

func TestStopWhileSending(t *testing.T) {
	s := newAPIServer(t)
	e := newTestEvents(t, s, zap.NewNop())
	e.retry = time.Hour
	s.refuseNext(1, http.StatusInternalServerError)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); e.run(ctx) }()
	e.observe(found(web, problemOf(web, "spec", "wrong")), false)
	for s.countPosts() == 0 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	<-done
}

func TestNotesFit(t *testing.T) {
	svc := &v1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"}}
	e := newEvent(notice{topic: aboutService, problem: problemOf(web, "spec", strings.Repeat("ü", maxNote))}, serviceObject(svc), "node-1", start)
	if len(e.Note) > maxNote || !strings.HasSuffix(e.Note, "ü...") {
		t.Errorf("the note has %d bytes and ends with %q", len(e.Note), e.Note[len(e.Note)-8:])
	}
}
