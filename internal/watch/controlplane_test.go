package watch

import (
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/controlplane"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const everyType = `
apiVersion: v1
kind: Service
metadata: {name: clusterip}
spec:
  clusterIP: 10.96.0.101
  internalTrafficPolicy: Local
  externalIPs: [198.51.100.7]
  externalTrafficPolicy: Local
  sessionAffinity: ClientIP
  ports: [{port: 80}]
---
apiVersion: v1
kind: Service
metadata: {name: nodeport}
spec:
  type: NodePort
  ipFamilyPolicy: RequireDualStack
  clusterIP: 10.96.0.102
  clusterIPs: [10.96.0.102, "fd00:10:96::102"]
  ports: [{name: dns-udp, port: 53, protocol: UDP, nodePort: 30053}, {name: dns, port: 53, nodePort: 30053}]
---
apiVersion: v1
kind: Service
metadata: {name: balanced}
spec:
  type: LoadBalancer
  ipFamilyPolicy: RequireDualStack
  clusterIP: 10.96.0.103
  clusterIPs: [10.96.0.103, "fd00:10:96::103"]
  externalTrafficPolicy: Local
  healthCheckNodePort: 32000
  loadBalancerSourceRanges: [203.0.113.0/24, "2001:db8:1::/48", 10.0.0.0/8]
  ports: [{port: 80, nodePort: 30080}]
status:
  loadBalancer:
    ingress: [{ip: 203.0.113.9}, {ip: 203.0.113.10, ipMode: Proxy}, {hostname: lb.example}, {ip: "2001:db8::9", ipMode: VIP}]
---
apiVersion: v1
kind: Service
metadata: {name: balanced-without-node-ports}
spec: {type: LoadBalancer, clusterIP: 10.96.0.104, allocateLoadBalancerNodePorts: false, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: headless}
spec: {clusterIP: None, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: external}
spec: {type: ExternalName, externalName: example.com}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: balanced-1, labels: {kubernetes.io/service-name: balanced}}
addressType: IPv4
ports: [{port: 8080}]
endpoints:
- {addresses: [10.244.1.5], nodeName: n1, zone: a, hints: {forZones: [{name: b}, {name: a}], forNodes: [{name: n1}]}}
- {addresses: [10.244.2.5], nodeName: n2, conditions: {ready: false, serving: true, terminating: true}}
---
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {topology.kubernetes.io/zone: a}}
spec:
  podCIDRs: [10.244.1.0/24, "fd00:10:244:1::/64"]
  taints: [{key: ToBeDeletedByClusterAutoscaler, effect: NoSchedule}]
status:
  addresses: [{type: ExternalIP, address: 198.51.100.1}, {type: InternalIP, address: 192.0.2.1}, {type: Hostname, address: n1}]
---
apiVersion: v1
kind: Node
metadata: {name: n2}
`

// A real API server accepts a watch from a version that it has not reached yet, but sends nothing. Therefore the source
// requests the newest version first.
func TestWatchFromFutureVersion(t *testing.T) {
	server := controlplane.Start(t, controlplane.Config{})
	api := mustAPI(t, server.Client(), defaultTiming())
	services := api.feeds[0]
	list, err := api.list(t.Context(), services, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	m, _ := meta.ListAccessor(list)
	if err := api.checkVersion(t.Context(), services, m.GetResourceVersion()); err != nil {
		t.Errorf("checkVersion rejects the version of a list: %v", err)
	}
	const future = "1000000"
	options := metav1.ListOptions{ResourceVersion: future, AllowWatchBookmarks: true, Watch: true}
	silent, err := services.request(&options).Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Stop()
	if err := server.Apply(t.Context(), everyType); err != nil {
		t.Fatal(err)
	}
	select {
	case event := <-silent.ResultChan():
		t.Errorf("a watch from a future version got %v; checkVersion may no longer be needed", event)
	case <-time.After(3 * time.Second):
	}
	if _, err := api.watch(t.Context(), services, metav1.ListOptions{ResourceVersion: future}); err == nil ||
		!strings.Contains(err.Error(), "restored from a backup") {
		t.Errorf("got error %v, want one about a restored backup", err)
	}
}
