package controlplane

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A stopping API server is killed after apiServerGrace.
const apiServerGrace = 20 * time.Second

// StartAPIServer starts the API server and returns when it is ready. After a restart, clients find the same
// objects.
func (cp *ControlPlane) StartAPIServer(ctx context.Context) error {
	if cp.apiServer != nil {
		return errors.New("start kube-apiserver: already running; call StopAPIServer first")
	}
	if cp.small != nil {
		return cp.startSmall()
	}
	begin := time.Now()
	apiServer, err := startProcess(cp.file("kube-apiserver.log"), cp.command(cp.apiServerProgram, cp.apiServerArgs()...))
	if err != nil {
		return err
	}
	cp.apiServer = apiServer
	if err := cp.awaitReady(ctx); err != nil {
		cp.apiServer.kill()
		cp.apiServer = nil
		return err
	}
	cp.config.Logf("kube-apiserver on %s ready after %s", cp.URL(), time.Since(begin).Round(time.Millisecond))
	return nil
}

// StopAPIServer stops the API server as an upgrade would.
func (cp *ControlPlane) StopAPIServer() {
	if cp.small != nil {
		cp.small.stop()
	}
	if cp.apiServer != nil {
		cp.apiServer.stop(apiServerGrace)
		cp.apiServer = nil
	}
}

// awaitReady also waits for the last objects that a new API server creates, so that tests never observe their
// creation.
func (cp *ControlPlane) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, cp.config.ReadyTimeout)
	defer cancel()
	client, err := restClient(cp.admin)
	if err != nil {
		return err
	}
	paths := []string{"/readyz", "/api/v1/namespaces/default/services/kubernetes"}
	if cp.config.KubernetesEndpoints {
		// The API server writes this slice after the Service.
		paths = append(paths, "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes")
	}
	for _, path := range paths {
		err := cp.apiServer.await(ctx, func(ctx context.Context) error {
			answer, err := client.Get().AbsPath(path).MaxRetries(0).Timeout(10 * time.Second).Do(ctx).Raw()
			if err != nil {
				return fmt.Errorf("GET %s: %w %s", path, err, answer)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (cp *ControlPlane) apiServerArgs() []string {
	reconciler := "none"
	if cp.config.KubernetesEndpoints {
		reconciler = "lease"
	}
	args := []string{
		"--etcd-servers=unix://" + cp.file("etcd.sock"),
		"--bind-address=" + cp.config.BindAddress.String(),
		"--advertise-address=" + cp.config.AdvertiseAddress.String(),
		"--secure-port=" + strconv.Itoa(cp.config.Port),
		"--service-cluster-ip-range=" + strings.Join(cp.config.ServiceCIDRs, ","),
		"--endpoint-reconciler-type=" + reconciler,

		"--tls-cert-file=" + cp.file(servingCert),
		"--tls-private-key-file=" + cp.file(servingKey),
		"--client-ca-file=" + cp.file(authorityCert),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + cp.file(tokenKey),
		"--service-account-signing-key-file=" + cp.file(tokenKey),
		"--authorization-mode=RBAC",

		// Tests create thousands of objects, and request limits would slow them down.
		"--enable-priority-and-fairness=false",
		"--max-requests-inflight=0",
		"--max-mutating-requests-inflight=0",
		// Otherwise a stopping server keeps serving its watches for a minute.
		"--shutdown-watch-termination-grace-period=1s",
		"--allow-privileged=true",
		"--profiling=false",
	}
	if !cp.config.Controllers {
		// No controller creates ServiceAccounts, so this plugin would reject all Pods.
		args = append(args, "--disable-admission-plugins=ServiceAccount")
	}
	if gates := featureGates(cp.config.FeatureGates); gates != "" {
		args = append(args, "--feature-gates="+gates)
	}
	return append(args, cp.config.APIServerArgs...)
}

func featureGates(gates map[string]bool) string {
	var list []string
	for name, on := range gates {
		list = append(list, fmt.Sprintf("%s=%t", name, on))
	}
	slices.Sort(list)
	return strings.Join(list, ",")
}
