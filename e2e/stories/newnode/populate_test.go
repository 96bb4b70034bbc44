package newnode

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/controlplane"
)

// populated writes the objects directly to etcd: on an emulated machine, creating 5,000 Services and their slices
// through the API server takes seven minutes.
func populated(t *testing.T, c *cluster.Cluster) (*controlplane.ControlPlane, string) {
	t.Helper()
	begin := time.Now()
	api := controlplane.Start(t, controlplane.Config{
		NetNS: c.Router.Namespace(), BindAddress: apiAddress, KubernetesEndpoints: true,
		ServiceCIDRs: []string{"10.96.0.0/16"},
		ReadyTimeout: patience, // for a busy emulated machine
	})
	t.Logf("the API server is ready after %s", time.Since(begin).Round(time.Second))
	etcd := overSocket(filepath.Join(api.Dir(), "etcd.sock"))
	var puts []put
	for n := range existing { // written first, because the API server repairs Services with unallocated addresses
		puts = append(puts, put{Key: []byte("/registry/ipaddresses/" + addressOf(n)), Value: stored(t, storedAddress(n))})
	}
	for n := range existing {
		puts = append(puts,
			put{Key: []byte("/registry/services/specs/default/" + nameOf(n)), Value: stored(t, storedService(n))},
			put{Key: []byte("/registry/endpointslices/default/" + nameOf(n)), Value: stored(t, storedSlice(n))})
	}
	for some := range slices.Chunk(puts, putsAtOnce) {
		if err := write(t.Context(), etcd, some); err != nil {
			t.Fatalf("write Services into etcd: %v", err)
		}
	}
	client := kubernetes.NewForConfigOrDie(api.Client()).CoreV1().Services("default")
	cluster.Eventually(t, patience, "the API server has the Services", func() error {
		all, err := client.List(t.Context(), metav1.ListOptions{})
		if err == nil && len(all.Items) <= existing {
			err = fmt.Errorf("it returned only %d Services", len(all.Items))
		}
		return err
	})
	t.Logf("%d Services added after %s", existing, time.Since(begin).Round(time.Second))
	kubeconfig, err := api.Kubeconfig("system:kube-proxy")
	if err != nil {
		t.Fatal(err)
	}
	return api, kubeconfig
}

// putsAtOnce is the number of writes per transaction. etcd limits it.
const putsAtOnce = 100

// put is the JSON of etcd's request to write one key.
type put struct {
	Key   []byte `json:"key"`
	Value []byte `json:"value"`
}

func overSocket(path string) *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}}
}

func write(ctx context.Context, etcd *http.Client, puts []put) error {
	type operation struct {
		Put put `json:"requestPut"`
	}
	var transaction struct {
		Success []operation `json:"success"`
	}
	for _, p := range puts {
		transaction.Success = append(transaction.Success, operation{p})
	}
	body, err := json.Marshal(transaction)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://etcd/v3/kv/txn", bytes.NewReader(body))
	if err != nil {
		return err
	}
	response, err := etcd.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("status %s: %s", response.Status, answer)
	}
	return err
}

// stored returns an object as the API server may store it in etcd.
func stored(t *testing.T, object any) []byte {
	t.Helper()
	text, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func metadata(name string, number int) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: name, Namespace: "default", UID: types.UID(fmt.Sprintf("00000000-0000-0000-0000-%012d", number)),
		CreationTimestamp: metav1.Now(),
	}
}

func nameOf(n int) string { return fmt.Sprintf("svc-%d", n) }

// The API server itself allocates the first ClusterIPs.
func addressOf(n int) string {
	return netip.AddrFrom4([4]byte{10, 96, byte(1 + n/250), byte(n%250 + 1)}).String()
}

func storedAddress(n int) *networkingv1.IPAddress {
	ip := &networkingv1.IPAddress{
		TypeMeta:   metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "IPAddress"},
		ObjectMeta: metadata(addressOf(n), 2*existing+n),
		Spec:       networkingv1.IPAddressSpec{ParentRef: &networkingv1.ParentReference{Resource: "services", Namespace: "default", Name: nameOf(n)}},
	}
	ip.Namespace = ""
	ip.Labels = map[string]string{networkingv1.LabelIPAddressFamily: "IPv4", networkingv1.LabelManagedBy: "ipallocator.k8s.io"}
	return ip
}

func storedService(n int) *corev1.Service {
	ip := addressOf(n)
	single, internal := corev1.IPFamilyPolicySingleStack, corev1.ServiceInternalTrafficPolicyCluster
	return &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metadata(nameOf(n), n),
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: ip, ClusterIPs: []string{ip},
			IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, IPFamilyPolicy: &single,
			InternalTrafficPolicy: &internal, SessionAffinity: corev1.ServiceAffinityNone,
			Ports: []corev1.ServicePort{{Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	}
}

func storedSlice(n int) *discoveryv1.EndpointSlice {
	number, protocol, ready, node := int32(8080), corev1.ProtocolTCP, true, "elsewhere"
	slice := &discoveryv1.EndpointSlice{
		TypeMeta:    metav1.TypeMeta{APIVersion: "discovery.k8s.io/v1", Kind: "EndpointSlice"},
		ObjectMeta:  metadata(nameOf(n), existing+n),
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new(string), Port: &number, Protocol: &protocol}},
	}
	slice.Labels = map[string]string{discoveryv1.LabelServiceName: nameOf(n)}
	for i := range each {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{netip.AddrFrom4([4]byte{10, byte(128 + n/250), byte(n % 250), byte(i + 1)}).String()},
			Conditions: discoveryv1.EndpointConditions{Ready: &ready}, NodeName: &node,
		})
	}
	return slice
}
