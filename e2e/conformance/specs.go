package conformance

import (
	"regexp"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/e2e/conformance/upstream"
	"github.com/kube-ipvs/kube-ipvs/e2e/record"
)

// rowSpecs names, for each row, the specs of Kubernetes' own tests that exercise its behavior. The labels at the end of a name are
// left out.
var rowSpecs = map[int][]string{
	1:   {"Services should serve a basic endpoint from pods"},
	2:   {"Services should serve multiport endpoints from pods"},
	3:   {"Services should be updated after adding or deleting ports"},
	4:   {"Services should preserve source pod IP for traffic thru service cluster IP"},
	5:   {"Services should allow pods to hairpin back to themselves through services"},
	6:   {"Services should be able to up and down services"},
	7:   {"Services should work after the service has been recreated"},
	8:   {"Services should work after restarting kube-proxy"},
	9:   {"Services should work after restarting apiserver"},
	10:  {"Services should be able to create a functioning NodePort service"},
	11:  {"Services should be possible to connect to a service via ExternalIP when the external IP is not assigned to a node"},
	12:  {"Services should be able to update service type to NodePort listening on same port number but different protocols"},
	13:  {"Services should be able to change the type from ExternalName to ClusterIP"},
	14:  {"Services should be able to change the type from ExternalName to NodePort"},
	15:  {"Services should be able to change the type from ClusterIP to ExternalName"},
	16:  {"Services should be able to change the type from NodePort to ExternalName"},
	17:  {"Services should prevent NodePort collisions"},
	18:  {"Services should check NodePort out-of-range"},
	19:  {"Services should release NodePorts on delete"},
	20:  {"Services should create endpoints for unready pods"},
	21:  {"Services should be able to connect to terminating and unready endpoints if PublishNotReadyAddresses is true"},
	22:  {"Services should not be able to connect to terminating and unready endpoints if PublishNotReadyAddresses is false"},
	23:  {"Services should have session affinity work for service with type clusterIP"},
	24:  {"Services should have session affinity timeout work for service with type clusterIP"},
	25:  {"Services should be able to switch session affinity for service with type clusterIP"},
	26:  {"Services should have session affinity work for NodePort service"},
	27:  {"Services should have session affinity timeout work for NodePort service"},
	28:  {"Services should be able to switch session affinity for NodePort service"},
	29:  {"Services should implement service.kubernetes.io/service-proxy-name"},
	30:  {"Services should implement service.kubernetes.io/headless"},
	31:  {"Services should be rejected when no endpoints exist"},
	32:  {"Services should be rejected for evicted pods (no endpoints exist)"},
	33:  {"Services should respect internalTrafficPolicy=Local Pod to Pod"},
	34:  {"Services should respect internalTrafficPolicy=Local Pod (hostNetwork: true) to Pod"},
	35:  {"Services should respect internalTrafficPolicy=Local Pod and Node, to Pod (hostNetwork: true)"},
	36:  {"Services should support externalTrafficPolicy=Local for type=NodePort"},
	37:  {"Services should fail health check node port if there are only terminating endpoints"},
	38:  {"Services should fallback to terminating endpoints when there are no ready endpoints with internalTrafficPolicy=Cluster"},
	39:  {"Services should fallback to local terminating endpoints when there are no ready endpoints with internalTrafficPolicy=Local"},
	40:  {"Services should fallback to terminating endpoints when there are no ready endpoints with externallTrafficPolicy=Cluster"},
	41:  {"Services should fallback to local terminating endpoints when there are no ready endpoints with externalTrafficPolicy=Local"},
	42:  {"Services should find a service from listing all namespaces"},
	43:  {"Services should complete a service status lifecycle"},
	44:  {"Services should delete a collection of services"},
	45:  {"Services should serve endpoints on same port and different protocols"},
	46:  {"Services should serve endpoints on same port and different protocol for internal traffic on Type LoadBalancer"},
	47:  {"Services should allow creating a basic SCTP service with pod and endpoints"},
	48:  {"Services should implement NodePort and HealthCheckNodePort correctly when ExternalTrafficPolicy changes"},
	49:  {"Services should connect to the ports exposed by restartable init containers"},
	50:  {"Services should connect to the named ports exposed by restartable init containers"},
	51:  {"Services should support named targetPorts that resolve to different ports on different endpoints"},
	52:  {"Conntrack should be able to preserve UDP traffic when server pod cycles for a NodePort service"},
	53:  {"Conntrack should be able to preserve UDP traffic when server pod cycles for a ClusterIP service"},
	54:  {"Conntrack should be able to preserve UDP traffic when server pod cycles for a ClusterIP service with InternalTrafficPolicy set to Local"},
	55:  {"Conntrack should be able to preserve UDP traffic when server pod cycles for a ClusterIP service and client is hostNetwork"},
	56:  {"Conntrack should be able to preserve UDP traffic when initial unready endpoints get ready"},
	57:  {"Conntrack proxy implementation should not be vulnerable to the invalid conntrack state bug"},
	58:  {"Conntrack should be able to cleanup conntrack entries when UDP service target port changes for a NodePort service"},
	59:  {"Networking Granular Checks: Services should function for pod-Service: http"},
	60:  {"Networking Granular Checks: Services should function for pod-Service: udp"},
	61:  {"Networking Granular Checks: Services should function for pod-Service: sctp"},
	62:  {"Networking Granular Checks: Services should function for node-Service: http"},
	63:  {"Networking Granular Checks: Services should function for node-Service: udp"},
	64:  {"Networking Granular Checks: Services should function for node-Service: sctp"},
	65:  {"Networking Granular Checks: Services should function for endpoint-Service: http"},
	66:  {"Networking Granular Checks: Services should function for endpoint-Service: udp"},
	67:  {"Networking Granular Checks: Services should function for endpoint-Service: sctp"},
	68:  {"Networking Granular Checks: Services should function for multiple endpoint-Services with same selector"},
	69:  {"Networking Granular Checks: Services should update endpoints: http"},
	70:  {"Networking Granular Checks: Services should update endpoints: udp"},
	71:  {"Networking Granular Checks: Services should update nodePort: http"},
	72:  {"Networking Granular Checks: Services should support basic nodePort: udp functionality"},
	73:  {"Networking Granular Checks: Services should update nodePort: udp"},
	74:  {"Networking Granular Checks: Services should function for client IP based session affinity: http"},
	75:  {"Networking Granular Checks: Services should function for client IP based session affinity: udp"},
	76:  {"Networking Granular Checks: Services should be able to handle large requests: http"},
	77:  {"Networking Granular Checks: Services should be able to handle large requests: udp"},
	78:  {"Networking Granular Checks: Services should function for service endpoints using hostNetwork"},
	79:  {"Networking should check kube-proxy urls"},
	80:  {"Networking should recreate its iptables rules if they are deleted"},
	81:  {"Networking should allow creating a Pod with an SCTP HostPort"},
	82:  {"[Feature:IPv6DualStack] should have at least one dual-stack node"},
	83:  {"[Feature:IPv6DualStack] should create pod, add ipv6 and ipv4 ip to pod ips"},
	84:  {"[Feature:IPv6DualStack] should create pod, add ipv6 and ipv4 ip to host ips"},
	85:  {"[Feature:IPv6DualStack] should be able to reach pod on ipv4 and ipv6 ip"},
	86:  {"[Feature:IPv6DualStack] should create a single stack service with cluster ip from primary service range"},
	87:  {"[Feature:IPv6DualStack] should create service with ipv4 cluster ip"},
	88:  {"[Feature:IPv6DualStack] should create service with ipv6 cluster ip"},
	89:  {"[Feature:IPv6DualStack] should create service with ipv4,v6 cluster ip"},
	90:  {"[Feature:IPv6DualStack] should create service with ipv6,v4 cluster ip"},
	91:  {"[Feature:IPv6DualStack] Granular Checks: Services Secondary IP Family [LinuxOnly] should function for pod-Service: http"},
	92:  {"[Feature:IPv6DualStack] Granular Checks: Services Secondary IP Family [LinuxOnly] should function for pod-Service: udp"},
	93:  {"[Feature:IPv6DualStack] Granular Checks: Services Secondary IP Family [LinuxOnly] should function for pod-Service: sctp"},
	94:  {"[Feature:IPv6DualStack] Granular Checks: Services Secondary IP Family [LinuxOnly] should function for node-Service: http"},
	95:  {"[Feature:IPv6DualStack] Granular Checks: Services Secondary IP Family [LinuxOnly] should function for node-Service: udp"},
	96:  {"[Feature:IPv6DualStack] Granular Checks: Services Secondary IP Family [LinuxOnly] should function for endpoint-Service: http"},
	97:  {"[Feature:IPv6DualStack] Granular Checks: Services Secondary IP Family [LinuxOnly] should function for endpoint-Service: udp"},
	98:  {"[Feature:IPv6DualStack] Granular Checks: Services Secondary IP Family [LinuxOnly] should update endpoints: http"},
	99:  {"[Feature:IPv6DualStack] Granular Checks: Services Secondary IP Family [LinuxOnly] should update endpoints: udp"},
	100: {"[Feature:IPv6DualStack] Granular Checks: Services Secondary IP Family [LinuxOnly] should function for client IP based session affinity: http"},
	101: {"[Feature:IPv6DualStack] Granular Checks: Services Secondary IP Family [LinuxOnly] should function for client IP based session affinity: udp"},
	102: {"[Feature:IPv6DualStack] Granular Checks: Services Secondary IP Family [LinuxOnly] should be able to handle large requests: http"},
	103: {"[Feature:IPv6DualStack] Granular Checks: Services Secondary IP Family [LinuxOnly] should be able to handle large requests: udp"},
	104: {"[Feature:IPv6DualStack] Granular Checks: Services Secondary IP Family [LinuxOnly] should function for service endpoints using hostNetwork"},
	105: {"Topology Hints should distribute endpoints evenly"},
	106: {"Traffic Distribution should route traffic to an endpoint in the same zone when using PreferClose"},
	107: {"Traffic Distribution should route traffic correctly between pods on multiple nodes when using PreferClose"},
	108: {"Traffic Distribution should route traffic to an endpoint in the same zone when using PreferSameZone"},
	109: {"Traffic Distribution should route traffic correctly between pods on multiple nodes when using PreferSameZone"},
	110: {"Traffic Distribution should route traffic to an endpoint on the same node or fall back to same zone when using PreferSameNode"},
	111: {"Traffic Distribution should route traffic to an endpoint on the same node when using PreferSameNode and fall back when the endpoint becomes unavailable"},
	129: {"EndpointSlice should support a Service with multiple ports specified in multiple EndpointSlices"},
	130: {"EndpointSlice should support a Service with multiple endpoint IPs specified in multiple EndpointSlices"},
	131: {
		"EndpointSlice should create Endpoints and EndpointSlices for Pods matching a Service",
		"EndpointSlice should create and delete EndpointSlices for a Service with a selector that matches no pods",
		"EndpointSliceMirroring should mirror a custom Endpoints resource through create update and delete",
	},
	132: {"HostPort validates that there is no conflict between pods with same hostPort but different hostIP and protocol"},
	133: {"NoSNAT Should be able to send traffic between Pods without SNAT"},
	134: {"Connectivity Pod Lifecycle should be able to connect from a Pod to a terminating Pod"},
	135: {"Connectivity Pod Lifecycle should be able to connect to other Pod from a terminating Pod"},
	136: {"Connectivity Pod Lifecycle should be able to have zero downtime on a Blue Green deployment using Services and Readiness Gates"},
	137: {"Service CIDRs should create Services and serve on different Service CIDRs"},
	138: {"Service endpoints latency should not be very high"},
	139: {"KubeProxy should set TCP CLOSE_WAIT timeout"},
	141: {
		"Proxy version v1 A set of valid responses are returned for both pod and service Proxy",
		"Proxy version v1 A set of valid responses are returned for both pod and service ProxyWithPath",
		"Proxy version v1 should proxy through a service and a pod",
	},
}

// specLabels are those at the end of a spec's name.
var specLabels = regexp.MustCompile(`( ?\[[^\]]*\])+$`)

// specName returns the spec's name as in rowSpecs.
func specName(spec string) string {
	return specLabels.ReplaceAllString(strings.TrimPrefix(spec, "[sig-network] "), "")
}

// passedSpecs returns the row's specs that passed.
func passedSpecs(row int, results []record.Test) (names []string) {
	for _, r := range results {
		if name := specName(r.Test); r.Package == upstream.Package && r.Status == "PASS" && slices.Contains(rowSpecs[row], name) {
			names = append(names, name)
		}
	}
	return names
}
