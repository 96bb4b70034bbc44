package realcluster

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/client-go/kubernetes"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/controlplane"
	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/upstream"
)

// The gateway is the control plane's machine, which is outside the cluster.
const (
	Gateway    = "192.168.50.1"
	gatewayV6  = "fd00:50::1"
	DNSAddress = "10.96.0.10"
	podsV4     = "10.244.0.0/16"
	podsV6     = "fd00:10:244::/56"

	lan = "lan" // the bridge
)

// Config configures a cluster.
type Config struct {
	Checkout string
	Nodes    int
	Zones    int    // number of zones in the nodes' labels; 0 for none
	Out      string // directory for logs
	// WithoutAgent installs neither the agent nor DNS.
	WithoutAgent bool
	Logf         func(format string, args ...any) // reports progress
}

// Cluster is a running cluster.
type Cluster struct {
	Checkout string
	API      *controlplane.ControlPlane
	Client   *kubernetes.Clientset
	Nodes    []*Node

	zones       int
	joined      int    // number of nodes so far, including removed ones
	out, dir    string // directories for logs, and for all other files
	kubeconfig  string
	controllers []*process
	logf        func(format string, args ...any)
}

// Up starts a cluster. It returns when the agent is ready on all nodes and DNS answers. After an error, Stop stops
// everything that Up has started.
func Up(ctx context.Context, config Config) (*Cluster, error) {
	c := &Cluster{Checkout: config.Checkout, zones: config.Zones, out: config.Out, logf: config.Logf}
	if c.logf == nil {
		c.logf = func(string, ...any) {}
	}
	var err error
	if c.dir, err = os.MkdirTemp("/run", "cluster-"); err != nil {
		return c, err
	}
	if err := c.connect(); err != nil {
		return c, err
	}
	for range config.Nodes {
		if _, err := c.join(); err != nil {
			return c, err
		}
	}
	// On a slow CPU, an API server that starts at the same time as other programs gives up after a minute.
	if err := c.startControlPlane(ctx); err != nil {
		return c, err
	}
	if err := c.bootNodes(); err != nil {
		return c, err
	}
	for _, n := range c.Nodes {
		if err := n.StartKubelet(); err != nil {
			return c, err
		}
	}
	if !config.WithoutAgent {
		if err := c.installServices(); err != nil {
			return c, err
		}
	}
	if err := c.awaitNodes(ctx); err != nil || config.WithoutAgent {
		return c, err
	}
	return c, c.awaitServices()
}

// connect creates the network that connects all machines.
func (c *Cluster) connect() error {
	if err := run(
		"modprobe -a overlay br_netfilter bridge veth nf_conntrack ip_vs",
		"ip link add "+lan+" type bridge",
		"ip addr add "+Gateway+"/24 dev "+lan,
		"ip addr add "+gatewayV6+"/64 dev "+lan+" nodad",
		"ip link set "+lan+" up",
		"sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1",
	); err != nil {
		return err
	}
	return divideCPU("")
}

func (c *Cluster) join() (*Node, error) {
	c.joined++
	n := newNode(c, c.joined)
	if err := n.connect(); err != nil {
		return nil, err
	}
	for _, other := range c.Nodes {
		if err := errors.Join(n.routeTo(other), other.routeTo(n)); err != nil {
			return nil, err
		}
	}
	c.Nodes = append(c.Nodes, n)
	return n, divideCPU(n.Name)
}

// AddNode adds a node and starts its kubelet with additional flags.
func (c *Cluster) AddNode(kubeletFlags ...string) (*Node, error) {
	n, err := c.join()
	if err != nil {
		return nil, err
	}
	n.kubeletFlags = kubeletFlags
	if err := n.boot(store(c.Checkout)); err != nil {
		return nil, err
	}
	return n, n.StartKubelet()
}

// RemoveNode kills everything on a node, as if the machine lost power. The Node object remains.
func (c *Cluster) RemoveNode(n *Node) error {
	c.Nodes = slices.DeleteFunc(c.Nodes, func(other *Node) bool { return other == n })
	return errors.Join(n.stop(), run("ip netns delete "+n.Name))
}

// divideCPU enables all controllers in a cgroup, because pods need them.
func divideCPU(group string) error {
	const top = "/sys/fs/cgroup"
	text, err := os.ReadFile(filepath.Join(top, "cgroup.controllers"))
	if err != nil {
		return fmt.Errorf("cgroups v2 are missing: %w", err)
	}
	all := "+" + strings.Join(strings.Fields(string(text)), " +")
	if err := os.MkdirAll(filepath.Join(top, group), 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(top, group, "cgroup.subtree_control"), []byte(all), 0o644)
}

func (c *Cluster) bootNodes() error {
	for _, n := range c.Nodes {
		if err := n.boot(store(c.Checkout)); err != nil {
			return err
		}
	}
	c.logf("containerd has the images on %d nodes", len(c.Nodes))
	return nil
}

func (c *Cluster) startControlPlane(ctx context.Context) error {
	if err := c.startAPIServer(ctx); err != nil {
		return err
	}
	c.logf("API server ready")
	var err error
	if c.kubeconfig, err = c.API.AdminKubeconfig(); err != nil {
		return err
	}
	if c.Client, err = kubernetes.NewForConfig(c.API.Client()); err != nil {
		return err
	}
	manager, err := c.API.Kubeconfig("system:kube-controller-manager")
	if err != nil {
		return err
	}
	scheduler, err := c.API.Kubeconfig("system:kube-scheduler")
	if err != nil {
		return err
	}
	return errors.Join(
		c.startController(upstream.KubeControllerManager, "--kubeconfig="+manager, "--use-service-account-credentials", "--leader-elect=false",
			"--service-account-private-key-file="+c.API.TokenKey(), "--root-ca-file="+c.API.Authority(),
			"--cluster-cidr="+podsV4+","+podsV6, "--node-monitor-grace-period=2m"),
		c.startController(upstream.KubeScheduler, "--kubeconfig="+scheduler, "--leader-elect=false"),
	)
}

// The API server exits if etcd does not respond within a minute. This can happen in an emulated guest on a busy
// machine, so there are three attempts.
func (c *Cluster) startAPIServer(ctx context.Context) (err error) {
	for attempt := 1; attempt <= 3; attempt++ {
		c.API, err = controlplane.Launch(ctx, controlplane.Config{
			Root: c.Checkout, Dir: filepath.Join(c.dir, fmt.Sprintf("controlplane-%d", attempt)),
			BindAddress: netip.MustParseAddr(Gateway), Port: 6443, KubernetesEndpoints: true, Controllers: true, ReadyTimeout: startTime,
			APIServerArgs: []string{"--authorization-mode=Node", "--enable-admission-plugins=NodeRestriction", "--kubelet-preferred-address-types=InternalIP"},
		})
		if err == nil || ctx.Err() != nil {
			return err
		}
		c.logf("API server not started: %v", err)
	}
	return err
}

func (c *Cluster) startController(name string, args ...string) error {
	program, err := upstream.Path(c.Checkout, name)
	if err != nil {
		return err
	}
	p, err := start(filepath.Join(c.out, name+".log"), exec.Command(program, args...))
	if err != nil {
		return err
	}
	c.controllers = append(c.controllers, p)
	return nil
}

// Env returns the environment in which kubectl and helm reach the cluster.
func (c *Cluster) Env() []string {
	path := []string{filepath.Join(folder(c.Checkout), "bin")}
	for _, name := range []string{upstream.Kubectl, upstream.Containerd, upstream.E2ETest} {
		if program, err := upstream.Path(c.Checkout, name); err == nil { // programs for tests may not have been built
			path = append(path, filepath.Dir(program))
		}
	}
	path = append(path, os.Getenv("PATH"))
	return append(os.Environ(), "PATH="+strings.Join(path, ":"), "KUBECONFIG="+c.kubeconfig)
}

// Kubectl runs kubectl as the administrator.
func (c *Cluster) Kubectl(args ...string) (string, error) { return c.Run("kubectl", args...) }

// Run runs a command on the control plane's machine, in the root of the checkout.
func (c *Cluster) Run(program string, args ...string) (string, error) {
	// exec.Command would search the PATH of this process.
	cmd := exec.Command("/usr/bin/env", append([]string{program}, args...)...)
	cmd.Dir, cmd.Env = c.Checkout, c.Env()
	text, err := cmd.CombinedOutput()
	if err != nil {
		return string(text), fmt.Errorf("%s %s: %w\n%s", program, strings.Join(args, " "), err, text)
	}
	return string(text), nil
}

// Stop stops the cluster's programs and removes its networks.
func (c *Cluster) Stop() error {
	var errs []error
	for _, n := range c.Nodes {
		errs = append(errs, n.stop())
	}
	for _, p := range c.controllers {
		errs = append(errs, p.kill())
	}
	if c.API != nil {
		errs = append(errs, c.keepLogs(), c.API.Stop())
	}
	for _, n := range c.Nodes {
		errs = append(errs, run("ip netns delete "+n.Name))
	}
	return errors.Join(append(errs, run("ip link delete "+lan))...)
}

func (c *Cluster) keepLogs() error {
	return run("cp " + filepath.Join(c.API.Dir(), "etcd.log") + " " + filepath.Join(c.API.Dir(), "kube-apiserver.log") + " " + c.out)
}

// run stops at the first command that fails.
func run(commands ...string) error {
	for _, command := range commands {
		args := strings.Fields(command)
		if text, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w\n%s", command, err, text)
		}
	}
	return nil
}
