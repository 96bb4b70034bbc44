package realcluster

import (
	"bytes"
	"embed"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"text/template"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/upstream"
)

//go:embed files
var files embed.FS

func render(name string, values any) ([]byte, error) {
	parsed, err := template.ParseFS(files, "files/"+name)
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	err = parsed.Execute(&text, values)
	return text.Bytes(), err
}

// Node is a machine with a kubelet. It consists of namespaces, in which its programs run.
type Node struct {
	Name           string
	IPv4, IPv6     string
	PodsV4, PodsV6 string // its pod ranges
	zone           string

	cluster             *Cluster
	holder              *process // its first process
	containerd, kubelet *process
	DNS                 string // DNS server in the kubelet's configuration
	kubeletFlags        []string
}

func newNode(c *Cluster, index int) *Node {
	zone := ""
	if c.zones > 0 {
		zone = fmt.Sprintf("zone-%d", 1+(index-1)%c.zones)
	}
	return &Node{
		zone: zone,
		Name: fmt.Sprintf("node%d", index), cluster: c, DNS: DNSAddress,
		IPv4: fmt.Sprintf("192.168.50.%d", 10+index), IPv6: fmt.Sprintf("fd00:50::%d", 10+index),
		PodsV4: fmt.Sprintf("10.244.%d.0/24", index), PodsV6: fmt.Sprintf("fd00:10:244:%d::/64", index),
	}
}

// A node has one interface, on the bridge that connects all machines.
func (n *Node) connect() error {
	return run(
		"ip netns add "+n.Name,
		"ip link add "+n.Name+" master "+lan+" type veth peer name eth0 netns "+n.Name,
		"ip link set "+n.Name+" up",
		"ip -n "+n.Name+" link set lo up",
		"ip -n "+n.Name+" addr add "+n.IPv4+"/24 dev eth0",
		"ip -n "+n.Name+" addr add "+n.IPv6+"/64 dev eth0 nodad",
		"ip -n "+n.Name+" link set eth0 up",
		"ip -n "+n.Name+" route add default via "+Gateway,
		"ip -n "+n.Name+" -6 route add default via "+gatewayV6,
		"ip route replace "+n.PodsV4+" via "+n.IPv4,
		"ip -6 route replace "+n.PodsV6+" via "+n.IPv6,
		"ip netns exec "+n.Name+" sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1"+
			" net.bridge.bridge-nf-call-iptables=1 net.bridge.bridge-nf-call-ip6tables=1",
	)
}

func (n *Node) routeTo(other *Node) error {
	return run(
		"ip -n "+n.Name+" route replace "+other.PodsV4+" via "+other.IPv4,
		"ip -n "+n.Name+" -6 route replace "+other.PodsV6+" via "+other.IPv6,
	)
}

func (n *Node) boot(store string) error {
	own := n.containers()
	if err := os.Mkdir(own, 0o711); err != nil {
		return err
	}
	if err := run("mount -t tmpfs tmpfs " + own); err != nil {
		return err
	}
	if err := useStore(store, own); err != nil {
		return fmt.Errorf("copy the images to %s: %w", n.Name, err)
	}
	script, err := files.ReadFile("files/node.sh")
	if err != nil {
		return err
	}
	cmd := exec.Command("nsenter", "--net=/run/netns/"+n.Name, "sh", "-c", string(script), "node.sh", n.Name, own, pauseProgram(n.cluster.Checkout))
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWUTS}
	if n.holder, err = start(n.log("node"), cmd); err != nil {
		return err
	}
	if err := n.configure(); err != nil {
		return err
	}
	return n.StartContainerd()
}

func (n *Node) configure() error {
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", n.holder.cmd.Process.Pid))
		if err == nil && string(name) == "pause\n" {
			break
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s did not start; see the log %s", n.Name, n.log("node"))
		}
	}
	plugin, err := upstream.Path(n.cluster.Checkout, upstream.BridgePlugin)
	if err != nil {
		return err
	}
	for _, f := range []struct {
		folder, name string
		values       any
	}{
		{"etc/cni/net.d", "bridge.conflist", n},
		{"run", "kubelet.yaml", n},
		{"run", "resolv.conf", n},
		{"run", "containerd.toml", map[string]string{"Pause": pauseImage, "Plugins": filepath.Dir(plugin)}},
	} {
		text, err := render(f.name, f.values)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(n.root(), f.folder, f.name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// root is the path of the node's root directory as seen from outside.
func (n *Node) root() string { return fmt.Sprintf("/proc/%d/root", n.holder.cmd.Process.Pid) }

// Command returns a command that runs on the node.
func (n *Node) Command(args ...string) *exec.Cmd {
	enter := []string{"-t", fmt.Sprint(n.holder.cmd.Process.Pid), "--mount", "--uts", "--net", "--pid", "--"}
	cmd := exec.Command("nsenter", append(enter, args...)...)
	cmd.Env = n.cluster.Env()
	return cmd
}

// StartContainerd waits until containerd is listening, because a kubelet that cannot connect exits.
func (n *Node) StartContainerd() (err error) {
	socket := filepath.Join(n.root(), "run/containerd/containerd.sock")
	if err := os.RemoveAll(socket); err != nil { // a killed containerd may need a moment to release it
		return err
	}
	if n.containerd, err = start(n.log("containerd"), n.Command("containerd", "--config", "/run/containerd.toml")); err != nil {
		return err
	}
	for deadline := time.Now().Add(startTime); ; time.Sleep(100 * time.Millisecond) {
		connection, err := net.Dial("unix", socket)
		if err == nil {
			return connection.Close()
		}
		if n.containerd.hasEnded() || time.Now().After(deadline) {
			return fmt.Errorf("containerd of %s is not listening; see the log %s: %w", n.Name, n.log("containerd"), err)
		}
	}
}

// StartKubelet starts the node's kubelet.
func (n *Node) StartKubelet() (err error) {
	config, err := n.cluster.API.Kubeconfig("system:node:"+n.Name, "system:nodes")
	if err != nil {
		return err
	}
	if err := copyFile(config, filepath.Join(n.root(), "run", "kubeconfig")); err != nil {
		return err
	}
	args := []string{
		"kubelet", "--config=/run/kubelet.yaml", "--kubeconfig=/run/kubeconfig", "--hostname-override=" + n.Name, "--node-ip=" + n.IPv4 + "," + n.IPv6,
		"--v=2", "--housekeeping-interval=1m",
	}
	if n.zone != "" {
		args = append(args, "--node-labels="+corev1.LabelTopologyZone+"="+n.zone)
	}
	n.kubelet, err = start(n.log("kubelet"), n.Command(append(args, n.kubeletFlags...)...))
	return err
}

// KillKubelet simulates a crash of the kubelet. Pods keep running.
func (n *Node) KillKubelet() error { return n.kubelet.kill() }

// KillContainerd simulates a crash of containerd. Pods keep running.
func (n *Node) KillContainerd() error { return n.containerd.kill() }

func (n *Node) stop() error {
	if n.holder == nil {
		return nil
	}
	if err := n.holder.kill(); err != nil {
		return err
	}
	return run("umount " + n.containers())
}

// containers is the path of containerd's directory as seen from outside the node.
func (n *Node) containers() string { return filepath.Join(n.cluster.dir, n.Name) }

func (n *Node) log(program string) string {
	return filepath.Join(n.cluster.out, n.Name, program+".log")
}
