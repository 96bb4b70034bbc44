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
	maxNote           = 1024 // bytes: the API's limits
	maxInstance       = 128
	eventNameLifetime = 10 * time.Minute
	// nodeEventNamespace is the namespace of Events on Nodes, because a Node has no namespace.
	nodeEventNamespace = metav1.NamespaceDefault
)

// topic contains the action of an Event, the reason of the Warning, and the reason of the Normal Event that
// resolves the Warning.
type topic struct{ action, warning, resolved string }

var (
	aboutService    = topic{"SyncService", "ServiceProblem", "ServiceProblemResolved"}
	aboutForeign    = topic{"SyncService", "ForeignVirtualServer", "ForeignVirtualServerRemoved"}
	aboutHealthPort = topic{"Listen", "FailedToStartServiceHealthcheck", "StartedServiceHealthcheck"}
	aboutNode       = topic{"SyncNode", "NodeProblem", "NodeProblemResolved"}
	aboutFamily     = topic{"Start", "FamilyNotServed", ""}
	aboutFailing    = topic{"SyncNode", "SyncFailing", "SyncRecovered"}
	aboutStart      = topic{"Start", "", "Starting"}            // always Normal
	aboutMove       = topic{"SyncNode", "", "DataPlaneChanged"} // always Normal
)

type notice struct {
	topic    topic
	problem  model.Problem
	resolved bool
}

func (n notice) opposite() notice { return notice{n.topic, n.problem, !n.resolved} }

// ofNode reports whether the notice is about this node rather than about a Service.
func (n notice) ofNode() bool { return n.problem.Service == (model.ServiceID{}) }

func (n notice) text() string {
	if n.topic.warning == "" {
		return n.problem.Reason
	}
	if n.resolved {
		return "resolved: " + n.problem.String()
	}
	return n.problem.String()
}

// serviceObject refers to a Service. "kubectl describe" finds only Events that have the object's UID.
func serviceObject(svc *v1.Service) v1.ObjectReference {
	return v1.ObjectReference{
		Kind: "Service", APIVersion: "v1", Namespace: svc.Namespace, Name: svc.Name, UID: svc.UID, ResourceVersion: svc.ResourceVersion,
	}
}

// nodeObject refers to a Node. Its UID is the Node's name, as in the kubelet's Events, because "kubectl describe"
// searches for this UID.
func nodeObject(name string) v1.ObjectReference {
	return v1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: name, UID: types.UID(name)}
}

func newEvent(n notice, about v1.ObjectReference, node string, now time.Time) *eventsv1.Event {
	kind, reason := v1.EventTypeWarning, n.topic.warning
	if n.resolved {
		kind, reason = v1.EventTypeNormal, n.topic.resolved
	}
	note := clip(n.text(), maxNote)
	namespace := about.Namespace
	if namespace == "" {
		namespace = nodeEventNamespace
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

// eventName returns the same name on every node. The name changes over time, because a problem can recur while its
// Event still exists.
func eventName(about v1.ObjectReference, kind, note string, now time.Time) string {
	const longest = 200 // leaves room for the suffix: a node's name can have the maximum length of an Event's name
	name := about.Name
	if len(name) > longest {
		name = strings.TrimRight(name[:longest], "-.")
	}
	h := fnv.New64a()
	fmt.Fprintf(h, "%s\x00%s\x00%s\x00%d", kind, about.UID, note, now.Unix()/int64(eventNameLifetime/time.Second))
	return fmt.Sprintf("%s.%016x", name, h.Sum64())
}

// clip shortens a text to a number of bytes of valid UTF-8.
func clip(s string, most int) string {
	const dots = "..."
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most-len(dots)], "") + dots
	}
	return s
}
