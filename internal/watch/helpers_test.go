package watch

import (
	"testing"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"
	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
)

// klogEntries contains client-go's log entries in these tests. The logger is set only once, because client-go's goroutines read
// it without a lock.
var klogEntries *observer.ObservedLogs

func TestMain(m *testing.M) {
	core, entries := observer.New(zapcore.DebugLevel)
	klogEntries = entries
	RedirectKlog(zap.New(core))
	utilruntime.ErrorHandlers = nil // a handler remembers when the last error occurred, which may be in another synctest bubble
	// Each test closes its HTTP connections, so any goroutine left is a leak.
	goleak.VerifyTestMain(m)
}

func ptr[T any](v T) *T { return &v }

func newTestConverter() converter { return newConverter("") }

func testService(name string, change func(*v1.Service)) *v1.Service {
	svc := &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: "u-1", CreationTimestamp: metav1.Unix(1700000000, 0)},
		Spec: v1.ServiceSpec{
			Type: v1.ServiceTypeClusterIP, ClusterIP: "10.96.0.10", ClusterIPs: []string{"10.96.0.10"},
			Ports: []v1.ServicePort{{Name: "http", Protocol: v1.ProtocolTCP, Port: 80}},
		},
	}
	if change != nil {
		change(svc)
	}
	return svc
}

func testSlice(name, service string, change func(*discoveryv1.EndpointSlice)) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: service},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr("http"), Protocol: ptr(v1.ProtocolTCP), Port: ptr(int32(8080))}},
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.244.1.5"}}},
	}
	if change != nil {
		change(slice)
	}
	return slice
}
