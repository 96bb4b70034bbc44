package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// rate is high enough not to slow tests down.
const rate = 5000

// Client returns the administrator's configuration for typed clients.
func (cp *ControlPlane) Client() *rest.Config { return rest.CopyConfig(cp.admin) }

// ClientFor is like Client, but for any user. Kubernetes reads the user and groups from the certificate.
func (cp *ControlPlane) ClientFor(user string, groups ...string) (*rest.Config, error) {
	credentials, err := cp.authority.client(user, groups)
	if err != nil {
		return nil, err
	}
	config := &rest.Config{
		Host:  cp.URL(),
		QPS:   rate,
		Burst: rate,
		TLSClientConfig: rest.TLSClientConfig{
			CAData:   cp.authority.pem,
			CertData: credentials.cert,
			KeyData:  credentials.key,
		},
		ContentConfig: rest.ContentConfig{
			ContentType:        "application/vnd.kubernetes.protobuf",
			AcceptContentTypes: "application/vnd.kubernetes.protobuf,application/json",
		},
	}
	if cp.config.NetNS != "" {
		config.Dial = dialIn(cp.config.NetNS)
	}
	return config, nil
}

// Kubeconfig writes a kubeconfig for a user in the given groups and returns its path.
func (cp *ControlPlane) Kubeconfig(user string, groups ...string) (string, error) {
	credentials, err := cp.authority.client(user, groups)
	if err != nil {
		return "", err
	}
	const name = "e2e"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{Server: cp.URL(), CertificateAuthorityData: cp.authority.pem}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{ClientCertificateData: credentials.cert, ClientKeyData: credentials.key}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	config.CurrentContext = name
	content, err := clientcmd.Write(*config)
	if err != nil {
		return "", fmt.Errorf("write the kubeconfig of %s: %w", user, err)
	}
	// A colon would split the path in $KUBECONFIG.
	file, err := os.CreateTemp(cp.config.Dir, "kubeconfig-"+strings.NewReplacer(":", "-", "/", "-").Replace(user)+"-*")
	if err != nil {
		return "", fmt.Errorf("write the kubeconfig of %s: %w", user, err)
	}
	_, err = file.Write(content)
	if err := errors.Join(err, file.Close()); err != nil {
		return "", fmt.Errorf("write the kubeconfig of %s: %w", user, err)
	}
	return file.Name(), nil
}

// AdminKubeconfig writes a kubeconfig with all permissions and returns its path.
func (cp *ControlPlane) AdminKubeconfig() (string, error) {
	return cp.Kubeconfig("kube-ipvs-e2e-admin", "system:masters")
}

// restClient returns a client for raw requests by path.
func restClient(config *rest.Config) (*rest.RESTClient, error) {
	config = rest.CopyConfig(config)
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	client, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	return client, nil
}

// dialIn returns a dialer whose connections start in a network namespace.
func dialIn(netns string) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (conn net.Conn, err error) {
		inside := func() { conn, err = new(net.Dialer).DialContext(ctx, network, address) }
		if failed := inNetNS(netns, inside); failed != nil {
			return nil, fmt.Errorf("connect from network namespace %s: %w", netns, failed)
		}
		return conn, err
	}
}

// inNetNS calls f on a thread in the network namespace. A socket stays in the namespace in which it was created.
func inNetNS(name string, f func()) error {
	there, err := os.Open(filepath.Join("/run/netns", name))
	if err != nil {
		return err
	}
	defer there.Close()
	done := make(chan error)
	go func() { // in a new goroutine, so that the caller's thread stays in its namespace
		runtime.LockOSThread()
		home, err := visit(there, f)
		if home {
			runtime.UnlockOSThread() // otherwise, the thread ends with this goroutine
		}
		done <- err
	}()
	return <-done
}

// visit calls f in another namespace. home reports whether the thread has returned to its original namespace.
func visit(there *os.File, f func()) (home bool, err error) {
	here, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return true, err
	}
	defer here.Close()
	if err := unix.Setns(int(there.Fd()), unix.CLONE_NEWNET); err != nil {
		return true, err
	}
	f()
	if err := unix.Setns(int(here.Fd()), unix.CLONE_NEWNET); err != nil {
		return false, fmt.Errorf("return from the namespace: %w", err)
	}
	return true, nil
}
