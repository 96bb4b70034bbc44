package controlplane

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cachedir"
	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/upstream"
)

const shop = `
# one object of each kind that the agent reads
apiVersion: v1
kind: Namespace
metadata: {name: shop}
---
apiVersion: v1
kind: Node
metadata: {name: node-1, labels: {topology.kubernetes.io/zone: a}}
status:
  addresses: [{type: InternalIP, address: 192.0.2.1}]
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  type: LoadBalancer
  clusterIP: 10.96.0.100
  ipFamilyPolicy: PreferDualStack
  ports: [{name: http, port: 80, targetPort: 8080}]
status:
  loadBalancer: {ingress: [{ip: 203.0.113.10}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.244.0.5], nodeName: node-1}]
`

func client(t *testing.T, cp *ControlPlane) *kubernetes.Clientset {
	t.Helper()
	c, err := kubernetes.NewForConfig(cp.Client())
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func apply(t *testing.T, cp *ControlPlane, documents string) {
	t.Helper()
	if err := cp.Apply(t.Context(), documents); err != nil {
		t.Fatal(err)
	}
}

func TestAppliedObjectsAreListedWithStatus(t *testing.T) {
	cp := Start(t, Config{})
	api := client(t, cp)
	version, err := api.Discovery().ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(cp.apiServerProgram, version.GitVersion) {
		t.Errorf("the server reports version %s, but its program is %s", version.GitVersion, cp.apiServerProgram)
	}

	apply(t, cp, shop)
	checkShop(t, api)
	t.Run("applying again updates and removes fields", func(t *testing.T) { applyAgain(t, cp, api) })
	t.Run("delete frees the names", func(t *testing.T) {
		for range 2 {
			if err := cp.Delete(t.Context(), shop); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := api.CoreV1().Namespaces().Get(t.Context(), "shop", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("reading the Namespace after Delete: got error %v, want not found", err)
		}
		apply(t, cp, shop)
	})
}

func checkShop(t *testing.T, api *kubernetes.Clientset) {
	t.Helper()
	services, err := api.CoreV1().Services("shop").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(services.Items) != 1 {
		t.Fatalf("got Services %v, %v; want one", services, err)
	}
	web := services.Items[0]
	if len(web.Spec.ClusterIPs) != 2 || web.Spec.ClusterIPs[0] != "10.96.0.100" {
		t.Errorf("got ClusterIPs %v, want 10.96.0.100 and an IPv6 address", web.Spec.ClusterIPs)
	}
	if web.Spec.Ports[0].NodePort == 0 {
		t.Error("no NodePort was allocated")
	}
	ingress := []corev1.LoadBalancerIngress{{IP: "203.0.113.10", IPMode: new(corev1.LoadBalancerIPModeVIP)}}
	if diff := cmp.Diff(ingress, web.Status.LoadBalancer.Ingress); diff != "" {
		t.Errorf("load balancer status (-want +got):\n%s", diff)
	}
	node, err := api.CoreV1().Nodes().Get(t.Context(), "node-1", metav1.GetOptions{})
	if err != nil || len(node.Status.Addresses) != 1 || node.Labels[corev1.LabelTopologyZone] != "a" {
		t.Errorf("got node %+v, %v; want one address and the zone", node, err)
	}
	slices, err := api.DiscoveryV1().EndpointSlices("shop").List(t.Context(), metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=web"})
	if err != nil || len(slices.Items) != 1 || slices.Items[0].Endpoints[0].Addresses[0] != "10.244.0.5" {
		t.Errorf("got EndpointSlices %+v, %v; want the applied slice", slices, err)
	}
}

func applyAgain(t *testing.T, cp *ControlPlane, api *kubernetes.Clientset) {
	changed := strings.NewReplacer("port: 80,", "port: 81,", ", labels: {topology.kubernetes.io/zone: a}", "", "203.0.113.10", "203.0.113.11").Replace(shop)
	apply(t, cp, changed)
	got, err := api.CoreV1().Services("shop").Get(t.Context(), "web", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Spec.Ports) != 1 || got.Spec.Ports[0].Port != 81 || got.Status.LoadBalancer.Ingress[0].IP != "203.0.113.11" {
		t.Errorf("after the change, the Service has ports %v and status %v", got.Spec.Ports, got.Status)
	}
	node, err := api.CoreV1().Nodes().Get(t.Context(), "node-1", metav1.GetOptions{})
	if err != nil || node.Labels[corev1.LabelTopologyZone] != "" {
		t.Errorf("got node labels %v, %v; want no zone", node.Labels, err)
	}
}

func TestWatchersSurviveRestartOfAPIServer(t *testing.T) {
	cp := Start(t, Config{})
	seen := watchServices(t, cp)
	awaitService(t, seen, "default/kubernetes")

	begin := time.Now()
	cp.StopAPIServer()
	t.Logf("the API server took %s to stop", time.Since(begin).Round(time.Millisecond))
	if err := cp.Apply(t.Context(), shop); err == nil {
		t.Error("Apply succeeded without an API server")
	}
	if err := cp.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	apply(t, cp, shop)
	awaitService(t, seen, "shop/web")
}

func watchServices(t *testing.T, cp *ControlPlane) <-chan string {
	t.Helper()
	seen := make(chan string, 100)
	factory := informers.NewSharedInformerFactory(client(t, cp), 0)
	_, err := factory.Core().V1().Services().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) {
			service := o.(*corev1.Service)
			seen <- service.Namespace + "/" + service.Name
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	factory.Start(stop)
	t.Cleanup(func() { close(stop); factory.Shutdown() })
	return seen
}

func awaitService(t *testing.T, seen <-chan string, name string) {
	t.Helper()
	deadline := time.After(2 * time.Minute)
	for {
		select {
		case got := <-seen:
			if got == name {
				return
			}
		case <-deadline:
			t.Fatalf("the watch never showed %s", name)
		}
	}
}

func TestRestrictedUsers(t *testing.T) {
	cp := Start(t, Config{})
	apply(t, cp, `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: proxiers}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: system:node-proxier}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: Group, name: proxiers}]
`)
	tests := []struct {
		name     string
		user     string
		groups   []string
		services bool
	}{
		{"bound by name, as Kubernetes does itself", "system:kube-proxy", nil, true},
		{"bound by group", "system:serviceaccount:kube-system:kube-ipvs", []string{"proxiers"}, true},
		{"not bound", "stranger", nil, false},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			path, err := cp.Kubeconfig(tc.user, tc.groups...)
			if err != nil {
				t.Fatal(err)
			}
			config, err := clientcmd.BuildConfigFromFlags("", path)
			if err != nil {
				t.Fatal(err)
			}
			api := kubernetes.NewForConfigOrDie(config)
			if _, err := api.CoreV1().Services("").List(t.Context(), metav1.ListOptions{}); apierrors.IsForbidden(err) == tc.services {
				t.Errorf("listing Services: %v, want allowed: %t", err, tc.services)
			}
			if _, err := api.CoreV1().Secrets("").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
				t.Errorf("listing Secrets: %v, want forbidden", err)
			}
		})
	}
}

func TestStopLeavesNothing(t *testing.T) {
	cp := Start(t, Config{})
	pids := []int{cp.etcd.cmd.Process.Pid, cp.apiServer.cmd.Process.Pid}
	if err := cp.Stop(); err != nil {
		t.Fatal(err)
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
			t.Errorf("Stop did not end process %d: %v", pid, err)
		}
	}
	if _, err := os.Stat(cp.Dir()); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Stop did not remove the directory %s: %v", cp.Dir(), err)
	}
}

// parentVariable makes TestChildrenDieWithParent run as the parent.
const parentVariable = "KUBE_IPVS_TEST_PARENT"

func TestChildrenDieWithParent(t *testing.T) {
	dir := os.Getenv(parentVariable)
	if dir != "" {
		cp, err := Launch(t.Context(), Config{Dir: dir})
		if err != nil {
			t.Fatal(err)
		}
		fmt.Printf("pids %d %d\n", cp.etcd.cmd.Process.Pid, cp.apiServer.cmd.Process.Pid)
		select {} // until killed
	}
	Start(t, Config{}) // skips if nothing is built

	parent := exec.Command(os.Args[0], "-test.run=^TestChildrenDieWithParent$")
	parent.Env = append(os.Environ(), parentVariable+"="+t.TempDir())
	output, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	pids := readPids(t, bufio.NewScanner(output))
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait() // returns an error, because the process was killed
	for _, pid := range pids {
		for deadline := time.Now().Add(time.Minute); !ended(pid); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("process %d outlived its parent", pid)
			}
		}
	}
}

func readPids(t *testing.T, lines *bufio.Scanner) []int {
	t.Helper()
	for lines.Scan() {
		numbers, found := strings.CutPrefix(lines.Text(), "pids ")
		if !found {
			continue
		}
		var pids []int
		for number := range strings.FieldsSeq(numbers) {
			pid, err := strconv.Atoi(number)
			if err != nil {
				t.Fatal(err)
			}
			pids = append(pids, pid)
		}
		return pids
	}
	t.Fatalf("the parent exited without a control plane: %v", lines.Err())
	return nil
}

// A zombie counts as ended, because an orphan may not have a parent that waits for it.
func ended(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(stat), ") Z ")
}

func TestInNetworkNamespace(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to create a network namespace")
	}
	name := fmt.Sprintf("kube-ipvs-cp-%d", os.Getpid())
	ip(t, "netns", "add", name)
	t.Cleanup(func() { ip(t, "netns", "delete", name) })
	ip(t, "-n", name, "link", "set", "lo", "up")
	ip(t, "-n", name, "link", "add", "veth0", "type", "veth", "peer", "veth1")
	ip(t, "-n", name, "address", "add", "192.0.2.10/24", "dev", "veth0")
	ip(t, "-n", name, "link", "set", "veth1", "up")
	ip(t, "-n", name, "link", "set", "veth0", "up")

	cp := Start(t, Config{
		NetNS:               name,
		BindAddress:         netip.MustParseAddr("192.0.2.10"),
		ServiceCIDRs:        []string{"10.97.0.0/24"},
		KubernetesEndpoints: true,
	})
	slices, err := client(t, cp).DiscoveryV1().EndpointSlices("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(slices.Items) != 1 || slices.Items[0].Endpoints[0].Addresses[0] != "192.0.2.10" {
		t.Errorf("got EndpointSlices %+v of default/kubernetes, want the API server's address", slices.Items)
	}
}

func ip(t *testing.T, args ...string) {
	t.Helper()
	if output, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v\n%s", strings.Join(args, " "), err, output)
	}
}

func TestFailedLaunchShowsLog(t *testing.T) {
	Start(t, Config{}) // skips if nothing is built
	dir := t.TempDir()
	_, err := Launch(t.Context(), Config{Dir: dir, APIServerArgs: []string{"--no-such-flag"}})
	if err == nil || !strings.Contains(err.Error(), "unknown flag: --no-such-flag") || !strings.Contains(err.Error(), filepath.Join(dir, "kube-apiserver.log")) {
		t.Errorf("got error %v, want an error that contains the end of the log and its path", err)
	}

	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := Launch(ctx, Config{Dir: dir}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v, want %v", err, context.DeadlineExceeded)
	}
}

func TestLaunchNeverBuilds(t *testing.T) {
	root, err := upstream.Root()
	if err != nil {
		t.Fatal(err)
	}
	unbuilt := t.TempDir()
	t.Setenv(cachedir.Variable, filepath.Join(unbuilt, "cache"))
	if err := os.CopyFS(filepath.Join(unbuilt, "e2e", "testbed", "upstream"), os.DirFS(filepath.Join(root, "e2e", "testbed", "upstream"))); err != nil {
		t.Fatal(err)
	}
	_, err = Launch(t.Context(), Config{Root: unbuilt})
	if !errors.Is(err, upstream.ErrNotBuilt) || !strings.Contains(err.Error(), upstream.BuildCommand) {
		t.Errorf("got error %v, want %v and the build command", err, upstream.ErrNotBuilt)
	}
}

func TestConfigRejectsWhatCannotWork(t *testing.T) {
	tests := []struct {
		name   string
		config Config
		want   string
	}{
		{"no address for clients", Config{BindAddress: netip.IPv6Unspecified()}, "is not an address that clients can use"},
		{"loopback endpoints", Config{KubernetesEndpoints: true}, "refuses loopback"},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			if _, err := Launch(t.Context(), tc.config); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q in it", err, tc.want)
			}
		})
	}
}
