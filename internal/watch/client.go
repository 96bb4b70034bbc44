package watch

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

const (
	contentProtobuf = runtime.ContentTypeProtobuf
	contentJSON     = runtime.ContentTypeJSON
)

// NewScheme returns a scheme with the two API groups that the agent watches. The full clientset has sixty groups and would double the size
// of the binary.
func NewScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1.AddToScheme, discoveryv1.AddToScheme} {
		if err := add(scheme); err != nil {
			panic("an API group cannot be registered in an empty scheme: " + err.Error())
		}
	}
	return scheme
}

// newClients returns clients for core/v1 and discovery/v1 that share one connection.
func newClients(config *rest.Config, userAgent string, timing timing, contacts *contacts) (core, discovery rest.Interface, err error) {
	config = rest.CopyConfig(config)
	// The default content type is JSON, which is several times slower to decode.
	config.ContentType, config.AcceptContentTypes = contentProtobuf, contentProtobuf+","+contentJSON
	config.NegotiatedSerializer = serializer.NewCodecFactory(NewScheme()).WithoutConversion()
	config.Timeout = 0 // a client timeout would end every watch; each request has its own timeout
	if userAgent != "" {
		config.UserAgent = userAgent
	}
	detectDeadConnections(config, timing, contacts)
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, nil, err
	}
	if core, err = newClient(config, httpClient, "/api", v1.SchemeGroupVersion); err != nil {
		return nil, nil, err
	}
	if discovery, err = newClient(config, httpClient, "/apis", discoveryv1.SchemeGroupVersion); err != nil {
		return nil, nil, err
	}
	return core, discovery, nil
}

func newClient(config *rest.Config, httpClient *http.Client, path string, group schema.GroupVersion) (rest.Interface, error) {
	config = rest.CopyConfig(config)
	config.APIPath, config.GroupVersion = path, &group
	return rest.RESTClientForConfigAndClient(config, httpClient)
}

// detectDeadConnections makes the client detect a dead server. A watch only receives data, so plain TCP never notices a dead peer.
// With these settings, TCP detects a dead machine, which acknowledges neither pings nor keepalive probes. HTTP/2 detects a program
// that does not answer pings.
//
// client-go reads its ping intervals only from environment variables, for the whole process. This client has its own dialer, and
// therefore its own transport, which can be changed before its first use.
func detectDeadConnections(config *rest.Config, timing timing, contacts *contacts) {
	if config.Transport != nil {
		return // the caller configures its own transport
	}
	if config.Dial == nil {
		config.Dial = (&net.Dialer{
			Timeout:         timing.dial,
			KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: timing.pingIdle, Interval: timing.gone / 4, Count: 2},
			Control:         limitUnacknowledged(timing.gone),
		}).DialContext
	}
	config.Dial = contacts.wrap(config.Dial)
	config.Wrap(func(rt http.RoundTripper) http.RoundTripper {
		if transport := innermost(rt); transport != nil {
			transport.TLSHandshakeTimeout = timing.dial
			transport.HTTP2 = &http.HTTP2Config{SendPingTimeout: timing.pingIdle, PingTimeout: timing.pingTimeout}
		}
		return rt
	})
}

func innermost(rt http.RoundTripper) *http.Transport {
	for {
		switch t := rt.(type) {
		case *http.Transport:
			return t
		case utilnet.RoundTripperWrapper:
			rt = t.WrappedRoundTripper()
		default:
			return nil
		}
	}
}

// RESTConfig returns the client configuration for the API server:
//
//   - with a kubeconfig: from that file
//   - without one, in a pod: with the pod's ServiceAccount
//   - outside a pod: without credentials
//
// In each case, server overrides the address. In a pod, it is usually needed: the agent makes Services work, so it cannot
// depend on the "kubernetes" Service to reach the API server. Outside a pod, it is required unless there is a kubeconfig.
func RESTConfig(kubeconfig, server string) (*rest.Config, error) {
	if kubeconfig != "" {
		return fromKubeconfig(kubeconfig, server)
	}
	config, err := rest.InClusterConfig()
	switch {
	case err == nil && server != "":
		config.Host = server
	case errors.Is(err, rest.ErrNotInCluster) && server != "":
		config = &rest.Config{Host: server}
	case errors.Is(err, rest.ErrNotInCluster):
		return nil, errors.New("no API server configured, and this is not a pod (KUBERNETES_SERVICE_HOST and " +
			"KUBERNETES_SERVICE_PORT are not set). Use --kubeconfig FILE")
	case err != nil:
		return nil, fmt.Errorf("read the pod's ServiceAccount (if automountServiceAccountToken is false, use --kubeconfig FILE): %w", err)
	}
	return checked(config, "--master")
}

func fromKubeconfig(path, server string) (*rest.Config, error) {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("kubeconfig %s does not exist. Use --kubeconfig FILE with an existing file, or omit it to use the pod's ServiceAccount", path)
	}
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(
		&clientcmd.ClientConfigLoadingRules{ExplicitPath: path},
		&clientcmd.ConfigOverrides{ClusterInfo: clientcmdapi.Cluster{Server: server}},
	).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig %s: %w", path, err)
	}
	return checked(config, "the server in kubeconfig "+path)
}

// checked rejects an invalid address, which the client would otherwise retry forever.
func checked(config *rest.Config, source string) (*rest.Config, error) {
	if _, _, err := rest.DefaultServerUrlFor(config); err != nil {
		return nil, fmt.Errorf("%s is %q: must be the address of the API server, such as https://192.0.2.10:6443", source, config.Host)
	}
	return config, nil
}
