package telemetry

import (
	"fmt"
	"hash/fnv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

const (
	eventController   = "kube-ipvs"
	maxNote           = 1024 // bytes, as the API wants it
	maxInstance       = 128
	eventNamesStayFor = 10 * time.Minute
	// nodeEventsIn is the namespace of Events on what has none.
	nodeEventsIn = metav1.NamespaceDefault
)

// topic is what an Event is about: what was done, and the reasons given for trouble and for its end. Problems have no codes to
// make several reasons of, and reading one out of a text for humans would break with the next better wording.
type topic struct{ action, trouble, solved string }

var (
	aboutService    = topic{"SyncService", "ServiceProblem", "ServiceProblemSolved"}
	aboutForeign    = topic{"SyncService", "ForeignVirtualServer", "ForeignVirtualServerGone"}
	aboutHealthPort = topic{"Listen", "FailedToStartServiceHealthcheck", "StartedServiceHealthcheck"}
	aboutNode       = topic{"SyncNode", "NodeProblem", "NodeProblemSolved"}
	aboutFamily     = topic{"Start", "FamilyNotServed", ""}
	aboutFailing    = topic{"SyncNode", "ProgrammingFailing", "ProgrammingWorks"}
	aboutStart      = topic{"Start", "", "Starting"} // no trouble, hence none that is solved
)

// notice is an Event to be.
type notice struct {
	topic   topic
	problem model.Problem
	solved  bool
}

// opposite is the notice that makes this one needless while neither is sent.
func (n notice) opposite() notice { return notice{n.topic, n.problem, !n.solved} }

// ofNode says whether the notice is about this node rather than about a Service.
func (n notice) ofNode() bool { return n.problem.Service == (model.ServiceID{}) }

func (n notice) text() string {
	if n.topic == aboutStart {
		return n.problem.Reason
	}
	if n.solved {
		return "solved: " + n.problem.String()
	}
	return n.problem.String()
}

// serviceObject is how an Event names a Service: "kubectl describe" finds only Events that know the object's UID.
func serviceObject(svc *v1.Service) v1.ObjectReference {
	return v1.ObjectReference{
		Kind: "Service", APIVersion: "v1", Namespace: svc.Namespace, Name: svc.Name, UID: svc.UID, ResourceVersion: svc.ResourceVersion,
	}
}

// nodeObject is how an Event names a Node. The kubelet, too, gives the name as UID, and "kubectl describe" looks for it.
func nodeObject(name string) v1.ObjectReference {
	return v1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: name, UID: types.UID(name)}
}

func newEvent(n notice, about v1.ObjectReference, node string, now time.Time) *eventsv1.Event {
	kind, reason := v1.EventTypeWarning, n.topic.trouble
	if n.solved {
		kind, reason = v1.EventTypeNormal, n.topic.solved
	}
	note := clip(n.text(), maxNote)
	namespace := about.Namespace
	if namespace == "" {
		namespace = nodeEventsIn
	}
	return &eventsv1.Event{
		TypeMeta:            metav1.TypeMeta{Kind: "Event", APIVersion: eventsv1.SchemeGroupVersion.String()},
		ObjectMeta:          metav1.ObjectMeta{Namespace: namespace, Name: eventName(about, kind, note, now)},
		EventTime:           metav1.NewMicroTime(now),
		ReportingController: eventController,
		ReportingInstance:   clip(node, maxInstance),
		Action:              n.topic.action,
		Reason:              reason,
		Regarding:           about,
		Note:                note,
		Type:                kind,
	}
}

// eventName is the same on every node, and another after a while: Events outlive problems, and a problem may come back.
func eventName(about v1.ObjectReference, kind, note string, now time.Time) string {
	const longest = 200 // a node's name may be as long as an Event's
	name := about.Name
	if len(name) > longest {
		name = strings.TrimRight(name[:longest], "-.")
	}
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\x00%s\x00%s\x00%d", kind, about.UID, note, now.Unix()/int64(eventNamesStayFor/time.Second))
	return fmt.Sprintf("%s.%016x", name, h.Sum64())
}

// clip shortens a text to a number of bytes, and leaves it valid.
func clip(s string, most int) string {
	const dots = "..."
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most-len(dots)], "") + dots
	}
	return s
}
