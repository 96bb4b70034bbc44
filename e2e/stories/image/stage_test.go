package image

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/controlplane"
)

// patience bounds every wait. Only a failing test waits that long.
const patience = 2 * time.Minute

// apiAddress is the API server's address in kubeadm's ConfigMap.
const apiAddress = "192.0.2.10"

// kubeadmConfigMap is the ConfigMap that kubeadm writes for kube-proxy.
const kubeadmConfigMap = checkout + "/internal/config/testdata/kubeadm-ipvs.yaml"

// inNamespace disables the conntrack limit, which can be set only in the initial network namespace.
const inNamespace = "--conntrack-max-per-core=0"

// stage is a kubeadm cluster in which the agent replaces kube-proxy. Its API server stores the chart's objects and
// kubeadm's unchanged ConfigMap.
type stage struct {
	*cluster.Cluster
	api          *controlplane.ControlPlane
	client       *kubernetes.Clientset
	pods         [2]*pod // on the nodes
	agents       [2]*cluster.Process
	here, far    *cluster.Pod // servers on the first and second node
	caller       *cluster.Pod // on the first node
	outside      *cluster.Host
	logsOfBefore strings.Builder
}

func newStage(t *testing.T) *stage {
	t.Helper()
	s := &stage{Cluster: cluster.New(t, cluster.Config{Name: "image", Nodes: 2})}
	s.Router.AddAddr(t, "lo", apiAddress)
	s.api = controlplane.Start(t, controlplane.Config{
		Real:  true, // only a real API server issues the pod's token
		NetNS: s.Router.Namespace(), BindAddress: netip.MustParseAddr(apiAddress), ReadyTimeout: 5 * time.Minute,
	})
	s.client = kubernetes.NewForConfigOrDie(s.api.Client())
	s.here, s.far = s.Nodes[0].Pod(t, "here"), s.Nodes[1].Pod(t, "far")
	s.caller, s.outside = s.Nodes[0].Pod(t, "caller"), s.Clients[0]
	for _, p := range []*cluster.Pod{s.here, s.far} {
		p.Serve(t, cluster.TCP, 8080)
		p.Serve(t, cluster.UDP, 8080)
	}
	s.RouteServiceCIDRVia(t, s.Nodes[0])
	s.apply(t, string(read(t, kubeadmConfigMap)))
	s.apply(t, string(read(t, checkout+"/charts/manifests/kubeadm.yaml")))
	s.apply(t, s.services(s.here, s.far))
	for _, node := range s.Nodes {
		s.pods[node.Index-1] = s.newPod(t, node, "kube-ipvs")
		s.startOn(t, node)
	}
	for _, agent := range s.agents {
		agent.AwaitLog(t, patience, "initial sync complete")
	}
	return s
}

func (s *stage) apply(t *testing.T, manifests string) {
	t.Helper()
	if err := s.api.Apply(t.Context(), manifests); err != nil {
		t.Fatalf("apply: %v\n%s", err, manifests)
	}
}

// newPod turns a DaemonSet into a pod, as the controller, the scheduler and the kubelet would.
func (s *stage) newPod(t *testing.T, node *cluster.Node, name string) *pod {
	t.Helper()
	ds, err := s.client.AppsV1().DaemonSets("kube-system").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p := &pod{node: node, spec: ds.Spec.Template.Spec, files: t.TempDir()}
	for _, volume := range p.spec.Volumes {
		if volume.ConfigMap != nil {
			p.config = s.configMap(t, volume.ConfigMap.Name)
		}
	}
	p.token = s.token(t, p.spec.ServiceAccountName)
	return p
}

func (s *stage) configMap(t *testing.T, name string) map[string]string {
	t.Helper()
	cm, err := s.client.CoreV1().ConfigMaps("kube-system").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return cm.Data
}

func (s *stage) token(t *testing.T, account string) map[string]string {
	t.Helper()
	answer, err := s.client.CoreV1().ServiceAccounts("kube-system").CreateToken(t.Context(), account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return map[string]string{"token": answer.Status.Token, "ca.crt": string(s.api.Client().CAData), "namespace": "kube-system"}
}

func (s *stage) startOn(t *testing.T, node *cluster.Node) {
	t.Helper()
	p := s.pods[node.Index-1]
	agent, err := node.StartCommand(p.command(t, append(p.arguments(), inNamespace)...))
	if err != nil {
		t.Fatal(err)
	}
	s.agents[node.Index-1] = agent
}

func (s *stage) stop(t *testing.T, node *cluster.Node) {
	t.Helper()
	agent := s.agents[node.Index-1]
	if !agent.Running() {
		return
	}
	if err := agent.Stop(patience); err != nil {
		t.Errorf("stop the agent on %s: %v", node.Name, err)
	}
	s.logsOfBefore.WriteString(agent.Log())
}

func (s *stage) restart(t *testing.T, node *cluster.Node) {
	t.Helper()
	s.stop(t, node)
	s.startOn(t, node)
	s.agents[node.Index-1].AwaitLog(t, patience, "initial sync complete")
}

func (s *stage) exec(t *testing.T, node *cluster.Node, args ...string) string {
	t.Helper()
	out, err := node.RunCommand(s.pods[node.Index-1].command(t, args...))
	if err != nil {
		t.Errorf("%v", err)
	}
	return out
}

func (s *stage) logs() string {
	all := s.logsOfBefore.String()
	for _, agent := range s.agents {
		all += agent.Log()
	}
	return all
}

// These addresses belong to the stage's Service, which serves TCP and UDP.
var clusterIPs = map[cluster.Family]string{cluster.V4: "10.96.0.10", cluster.V6: "fd00:10:96::10"}

const nodePort = 30080

func (s *stage) services(endpoints ...*cluster.Pod) string {
	manifest := `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default}
spec:
  type: NodePort
  ipFamilyPolicy: RequireDualStack
  clusterIP: ` + clusterIPs[cluster.V4] + `
  clusterIPs: ["` + clusterIPs[cluster.V4] + `", "` + clusterIPs[cluster.V6] + `"]
  ports:
  - {name: tcp, port: 80, targetPort: 8080, nodePort: 30080, protocol: TCP}
  - {name: udp, port: 80, targetPort: 8080, nodePort: 30080, protocol: UDP}
`
	for _, family := range s.FamilyList() {
		manifest += `---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-` + strings.ToLower(family.String()) + `, namespace: default, labels: {kubernetes.io/service-name: web}}
addressType: ` + family.String() + `
ports: [{name: tcp, port: 8080, protocol: TCP}, {name: udp, port: 8080, protocol: UDP}]
endpoints:
`
		for _, p := range endpoints {
			manifest += "- {addresses: [\"" + p.Addr(family).String() + "\"], nodeName: " + p.Node.Name + "}\n"
		}
	}
	return manifest
}
