// Package controlplane runs a real Kubernetes control plane for tests: etcd and kube-apiserver as child processes.
// No controllers run, so a test must create everything that it needs, including EndpointSlices and Nodes (see
// Apply).
package controlplane

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/upstream"
	"github.com/kube-ipvs/kube-ipvs/internal/freeport"
)

// Config configures a control plane. The zero value runs it on loopback with dual-stack Service ranges.
type Config struct {
	// Root is the checkout with the programs to run. By default, it is the checkout that contains the working directory.
	Root string
	// Dir is the directory for data, keys, kubeconfigs and logs. By default, it is a temporary directory, which
	// Stop removes.
	Dir string

	// NetNS is the network namespace (an ip-netns(8) name) in which the programs run. This package's clients
	// connect from inside it. By default, the programs run in the namespace of this process.
	NetNS string
	// BindAddress is the address on which the API server listens (default 127.0.0.1).
	BindAddress netip.Addr
	// AdvertiseAddress is the address in the default/kubernetes endpoints (default BindAddress).
	AdvertiseAddress netip.Addr
	// Port is the API server's port. The default is a free port, or 6443 in a NetNS.
	Port int

	// ServiceCIDRs lists one range, or one range per IP family (default 10.96.0.0/16 and fd00:10:96::/112).
	ServiceCIDRs []string
	// KubernetesEndpoints makes the API server write its address into the endpoints of the default/kubernetes
	// Service. Kubernetes refuses loopback addresses as endpoints.
	KubernetesEndpoints bool
	FeatureGates        map[string]bool
	// Controllers is true if the caller starts kube-controller-manager. Pods then need a ServiceAccount.
	Controllers bool
	// Real is true if a test depends on the behavior of a real API server. See SmallVariable.
	Real bool
	// APIServerArgs override other flags.
	APIServerArgs []string

	// ReadyTimeout limits the start of the API server. The default is two minutes, which an emulated machine may
	// need.
	ReadyTimeout time.Duration
	// Logf receives one line per start.
	Logf func(format string, args ...any)
}

func (c Config) withDefaults() (Config, error) {
	if c.Root == "" {
		root, err := upstream.Root()
		if err != nil {
			return c, err
		}
		c.Root = root
	}
	if !c.BindAddress.IsValid() {
		c.BindAddress = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	if c.BindAddress.IsUnspecified() {
		return c, fmt.Errorf("BindAddress %s is not an address that clients can use: use one of the host's addresses", c.BindAddress)
	}
	if !c.AdvertiseAddress.IsValid() {
		c.AdvertiseAddress = c.BindAddress
	}
	if c.KubernetesEndpoints && c.AdvertiseAddress.IsLoopback() {
		return c, fmt.Errorf("KubernetesEndpoints needs an AdvertiseAddress other than %s: Kubernetes refuses loopback endpoints", c.AdvertiseAddress)
	}
	if len(c.ServiceCIDRs) == 0 {
		c.ServiceCIDRs = defaultServiceCIDRs()
	}
	if c.ReadyTimeout == 0 {
		c.ReadyTimeout = 2 * time.Minute
	}
	if c.Logf == nil {
		c.Logf = func(string, ...any) {}
	}
	return c.withPort()
}

func defaultServiceCIDRs() []string { return []string{"10.96.0.0/16", "fd00:10:96::/112"} }

func (c Config) withPort() (Config, error) {
	switch {
	case c.Port != 0:
	case c.NetNS != "":
		c.Port = 6443 // nothing else listens in a test's namespace
	default:
		port, err := freeport.Find()
		if err != nil {
			return c, err
		}
		c.Port = int(port)
	}
	return c, nil
}

// ControlPlane is a running etcd with a kube-apiserver. Its methods are not safe for concurrent use.
type ControlPlane struct {
	config    Config
	temporary bool // Stop removes the directory
	authority *authority
	admin     *rest.Config

	etcdProgram, apiServerProgram string
	etcd, apiServer               *process // nil while stopped
	small                         *smallServer
}

// Launch starts etcd and the API server, and returns when the API is ready: the default roles, the namespaces and
// the default/kubernetes Service exist. If the programs are not built, the error is upstream.ErrNotBuilt.
func Launch(ctx context.Context, config Config) (*ControlPlane, error) {
	config, err := config.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("configure the control plane: %w", err)
	}
	cp := &ControlPlane{config: config}
	if config.small() {
		if err := cp.launchSmall(); err != nil {
			return nil, errors.Join(err, cp.Stop())
		}
		return cp, nil
	}
	if cp.etcdProgram, err = upstream.Path(config.Root, upstream.Etcd); err != nil {
		return nil, err
	}
	if cp.apiServerProgram, err = upstream.Path(config.Root, upstream.KubeAPIServer); err != nil {
		return nil, err
	}
	if err := cp.start(ctx); err != nil {
		if cp.temporary {
			err = fmt.Errorf("%w\n(set Config.Dir to keep the complete logs)", err)
		}
		return nil, errors.Join(err, cp.Stop())
	}
	return cp, nil
}

func (cp *ControlPlane) start(ctx context.Context) error {
	begin := time.Now()
	if err := cp.makeDir(); err != nil {
		return err
	}
	if err := cp.makeCredentials(); err != nil {
		return err
	}
	if err := cp.startEtcd(ctx); err != nil {
		return err
	}
	cp.config.Logf("etcd answers after %s", time.Since(begin).Round(time.Millisecond))
	return cp.StartAPIServer(ctx)
}

// makeDir creates the data directory, by default in memory, where etcd and the API server start fastest.
func (cp *ControlPlane) makeDir() error {
	if cp.config.Dir != "" {
		dir, err := filepath.Abs(cp.config.Dir)
		if err != nil {
			return fmt.Errorf("create the control plane's directory: %w", err)
		}
		cp.config.Dir = dir
		return os.MkdirAll(dir, 0o700)
	}
	dir, err := os.MkdirTemp(memory(), "kube-ipvs-")
	if err != nil {
		return fmt.Errorf("create the control plane's directory: %w", err)
	}
	cp.config.Dir, cp.temporary = dir, true
	return nil
}

// memory returns /dev/shm if it has room for etcd's log, which preallocates 128 MiB.
func memory() string {
	const shm, room = "/dev/shm", 256 << 20
	var fs unix.Statfs_t
	if unix.Statfs(shm, &fs) == nil && fs.Type == unix.TMPFS_MAGIC && fs.Bavail*uint64(fs.Bsize) >= room {
		return shm
	}
	return os.TempDir()
}

// Stop kills both programs and removes the temporary directory.
func (cp *ControlPlane) Stop() error {
	for _, p := range []**process{&cp.apiServer, &cp.etcd} {
		if *p != nil {
			(*p).kill() // the data is not needed, so skip graceful termination
			*p = nil
		}
	}
	if cp.small != nil {
		cp.small.stop()
	}
	if !cp.temporary {
		return nil
	}
	return os.RemoveAll(cp.config.Dir)
}

// Dir returns the directory with data, keys, kubeconfigs and logs.
func (cp *ControlPlane) Dir() string { return cp.config.Dir }

// Authority returns the path of the certificate that signs all others.
func (cp *ControlPlane) Authority() string { return cp.file(authorityCert) }

// TokenKey returns the path of the key that signs service account tokens.
func (cp *ControlPlane) TokenKey() string { return cp.file(tokenKey) }

// PIDs returns the process IDs of the API server and etcd.
func (cp *ControlPlane) PIDs() []int {
	var pids []int
	for _, p := range []*process{cp.apiServer, cp.etcd} {
		if p != nil {
			pids = append(pids, p.cmd.Process.Pid)
		}
	}
	return pids
}

// URL returns the API server's URL.
func (cp *ControlPlane) URL() string {
	return "https://" + net.JoinHostPort(cp.config.BindAddress.String(), strconv.Itoa(cp.config.Port))
}

func (cp *ControlPlane) command(program string, args ...string) []string {
	command := append([]string{program}, args...)
	if cp.config.NetNS != "" {
		// ip replaces itself with the program, so signals reach the program.
		return append([]string{"ip", "netns", "exec", cp.config.NetNS}, command...)
	}
	return command
}

func (cp *ControlPlane) file(name string) string { return filepath.Join(cp.config.Dir, name) }
