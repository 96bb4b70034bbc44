package inspect

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

// patience bounds every wait. Only a failing test waits that long.
const patience = 60 * time.Second

const (
	plainIP    = "10.96.0.10"
	stickyIP   = "10.96.0.11"
	emptyIP    = "10.96.0.12"
	localIP    = "10.96.0.13"
	localLB    = "203.0.113.13"
	rangedIP   = "10.96.0.14"
	rangedLB   = "203.0.113.14"
	farIP      = "10.96.0.15"
	farLB      = "203.0.113.15"
	weightedIP = "10.96.0.16"
	plain6IP   = "fd00:10:96::10"
	sticky6IP  = "fd00:10:96::11"
	local6IP   = "fd00:10:96::13"
	local6LB   = "2001:db8:5::13"
	far6IP     = "fd00:10:96::15"
	far6LB     = "2001:db8:5::15"
)

// services is the number of Services in the manifests.
const services = 11

type stage struct {
	*cluster.Cluster
	node      *cluster.Node
	here, far *cluster.Pod // endpoints on the agent's node and on the other node
	also      *cluster.Pod // another endpoint on the agent's node
	client    *cluster.Pod
	outside   *cluster.Host
	agent     *cluster.Process
	binary    string
	dir       string // directory for files
	manifests string // directory of the agent's manifests
	socket    string
}

// newStage also passes the flags to the agent.
func newStage(t *testing.T, flags ...string) *stage {
	t.Helper()
	labtest.Need(t)
	s := &stage{Cluster: cluster.New(t, cluster.Config{Name: "inspect", Nodes: 2})}
	s.binary = cluster.AgentBinary(t)
	s.node, s.outside = s.Nodes[0], s.Clients[0]
	s.here, s.also, s.far = s.node.Pod(t, "here"), s.node.Pod(t, "also"), s.Nodes[1].Pod(t, "far")
	s.client = s.node.Pod(t, "client")
	for _, pod := range []*cluster.Pod{s.here, s.also, s.far} {
		pod.Serve(t, cluster.TCP, 8080)
	}
	s.RouteServiceCIDRVia(t, s.node)
	s.RouteVia(t, "203.0.113.0/24", s.node)
	s.RouteVia(t, "2001:db8:5::/64", s.node)
	s.dir, s.manifests = t.TempDir(), t.TempDir()
	s.apply(t, "all.yaml", s.all())
	s.socket = filepath.Join(s.dir, "run", "agent.sock")
	agent := s.binary
	if slices.Contains(flags, "--data-plane=userspace") { // the other one runs in a container that may not create namespaces
		agent = filepath.Join(os.Getenv("KUBE_IPVS_ROOT"), "bin", "kube-ipvs")
	}
	s.agent = s.node.MustStart(t, append([]string{agent, "run", "--manifests", s.manifests, "--hostname-override", s.node.Name,
		"--cluster-cidr", "10.244.0.0/16,fd00:10:244::/48", "--conntrack-max-per-core", "0", "--status-socket", s.socket, "--metrics-service-ports", "100"}, flags...)...)
	s.agent.AwaitLog(t, patience, "initial sync complete")
	return s
}

func (s *stage) apply(t *testing.T, file, manifests string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(s.manifests, file), []byte(manifests), 0o644); err != nil {
		t.Fatal(err)
	}
}

func (s *stage) all() string {
	all := []*cluster.Pod{s.here, s.also, s.far}
	return s.service("plain", plainIP, "", "", "", all...) +
		s.service("sticky", stickyIP, "", "  sessionAffinity: ClientIP\n", "", all...) +
		s.service("empty", emptyIP, "", "", "") +
		s.service("local", localIP, localLB, "  type: LoadBalancer\n  externalTrafficPolicy: Local\n", "", all...) +
		s.service("ranged", rangedIP, rangedLB, "  type: LoadBalancer\n  loadBalancerSourceRanges: [192.0.2.0/24, "+s.client.V4.String()+"/32]\n", "", all...) +
		s.service("far", farIP, farLB, "  type: LoadBalancer\n  externalTrafficPolicy: Local\n", "", s.far) +
		s.service("weighted", weightedIP, "", "", "{kube-ipvs.io/weight-by-pod: also=0}", all...) +
		s.service("plain6", plain6IP, "", "", "", all...) +
		s.service("sticky6", sticky6IP, "", "  sessionAffinity: ClientIP\n", "", all...) +
		s.service("local6", local6IP, local6LB, "  type: LoadBalancer\n  externalTrafficPolicy: Local\n", "", all...) +
		s.service("far6", far6IP, far6LB, "  type: LoadBalancer\n  externalTrafficPolicy: Local\n", "", s.far)
}

func (s *stage) service(name, ip, balancer, spec, annotations string, pods ...*cluster.Pod) string {
	var b strings.Builder
	family := cluster.V4
	if strings.Contains(ip, ":") {
		family = cluster.V6
	}
	fmt.Fprintf(&b, `apiVersion: v1
kind: Service
metadata: {name: %s, namespace: default, annotations: %s}
spec:
  clusterIP: %q
%s  ports: [{name: http, port: 80}]
`, name, cmp.Or(annotations, "{}"), ip, spec)
	if balancer != "" {
		fmt.Fprintf(&b, "status: {loadBalancer: {ingress: [{ip: %q}]}}\n", balancer)
	}
	fmt.Fprintf(&b, `---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %s-1, namespace: default, labels: {kubernetes.io/service-name: %s}}
addressType: %s
ports: [{name: http, port: 8080}]
endpoints:%s
`, name, name, family, map[bool]string{true: " []"}[len(pods) == 0])
	for _, pod := range pods {
		fmt.Fprintf(&b, "- {addresses: [%q], nodeName: %s, targetRef: {kind: Pod, namespace: default, name: %s}}\n", pod.Addr(family), pod.Node.Name, pod.Name)
	}
	b.WriteString("---\n")
	return b.String()
}

// runJSON ignores the command's exit status.
func runJSON[T any](t *testing.T, s *stage, args ...string) T {
	t.Helper()
	var output T
	out, err := s.node.Run(append(append([]string{s.binary}, args...), "--status-socket", s.socket, "-o", "json")...)
	if unreadable := json.Unmarshal([]byte(out), &output); unreadable != nil {
		t.Fatalf("%v: %v; %v\n%s", args, unreadable, err, out)
	}
	return output
}
