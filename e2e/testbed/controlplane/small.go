package controlplane

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-ipvs/kube-ipvs/internal/watch/watchtest"
)

// SmallVariable names the variable that, if set to "small", replaces the real API server with one that only stores
// objects. The small server neither validates objects nor fills in defaults, and it grants every user all permissions,
// but it is several times as fast.
const SmallVariable = "KUBE_IPVS_API"

// NeedReal fails the test unless the API server is real.
func NeedReal(t testing.TB) {
	t.Helper()
	if os.Getenv(SmallVariable) != "" {
		t.Fatal("this test needs a real API server; run it without API=small")
	}
}

// small reports whether the small API server supports the configuration.
func (c Config) small() bool {
	return os.Getenv(SmallVariable) == "small" && !c.KubernetesEndpoints && !c.Controllers && !c.Real && len(c.FeatureGates)+len(c.APIServerArgs) == 0
}

// smallServer keeps its objects when it is stopped.
type smallServer struct {
	*watchtest.Server
	running *http.Server
}

// launchSmall creates the objects that a real API server creates on startup.
func (cp *ControlPlane) launchSmall() error {
	if err := errors.Join(cp.makeDir(), cp.makeCredentials()); err != nil {
		return err
	}
	cp.small = &smallServer{Server: watchtest.NewServer()}
	cp.small.Writable = true
	cp.small.Failed = func(err error) { fmt.Fprintln(os.Stderr, "the small API server:", err) }
	for _, name := range []string{"default", "kube-system", "kube-public", "kube-node-lease"} {
		cp.small.Put(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	service := netip.MustParsePrefix(cp.config.ServiceCIDRs[0]).Masked().Addr().Next().String()
	cp.small.Put(&corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "kubernetes"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: service, ClusterIPs: []string{service},
			Ports: []corev1.ServicePort{{Name: "https", Protocol: corev1.ProtocolTCP, Port: 443}},
		},
	})
	return cp.startSmall()
}

func (cp *ControlPlane) startSmall() error {
	pair, err := tls.LoadX509KeyPair(cp.file(servingCert), cp.file(servingKey))
	if err != nil {
		return fmt.Errorf("read credentials: %w", err)
	}
	clients := x509.NewCertPool()
	clients.AppendCertsFromPEM(cp.authority.pem)
	listener, err := cp.listen()
	if err != nil {
		return err
	}
	cp.small.running = &http.Server{
		Handler:   cp.small,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: clients, ClientAuth: tls.RequireAndVerifyClientCert, MinVersion: tls.VersionTLS12},
		ErrorLog:  log.New(io.Discard, "", 0),
	}
	go func(server *http.Server) { _ = server.ServeTLS(listener, "", "") }(cp.small.running) // until it is closed
	return nil
}

func (cp *ControlPlane) listen() (listener net.Listener, err error) {
	open := func() {
		listener, err = net.Listen("tcp", netip.AddrPortFrom(cp.config.BindAddress, uint16(cp.config.Port)).String())
	}
	if cp.config.NetNS == "" {
		open()
		return listener, err
	}
	if failed := inNetNS(cp.config.NetNS, open); failed != nil {
		return nil, fmt.Errorf("listen in %s: %w", cp.config.NetNS, failed)
	}
	return listener, err
}

// TestRealServerAccepts sends the objects in this file to a real API server.
const rememberedFile = "applied.yaml"

func remember(documents string) error {
	dir := os.Getenv("LAB_OUT")
	if dir == "" {
		return nil
	}
	file, err := os.OpenFile(filepath.Join(dir, rememberedFile), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	_, err = file.WriteString("---\n" + documents + "\n")
	return errors.Join(err, file.Close())
}

func (s *smallServer) stop() {
	if s.running != nil {
		s.running.Close()
		s.running = nil
	}
}
