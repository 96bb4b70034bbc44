package realcluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
)

// An emulated guest on a busy machine needs minutes for each wait during startup.
const startTime = 15 * time.Minute

// InstallArgs returns helm's arguments to install the agent. They set no conntrack limit, because it can be set only
// in the initial network namespace.
func InstallArgs(more ...string) []string {
	return append([]string{
		"install", "kube-ipvs", "charts/kube-ipvs", "--namespace", "kube-system", "-f", "charts/kube-ipvs/presets/no-kube-proxy.yaml",
		"--set", "apiServer.host=" + Gateway, "--set-string", "config.clusterCIDR=" + podsV4 + `\,` + podsV6,
		"--set", "config.conntrack.maxPerCore=0", "--set", "config.conntrack.min=0",
	}, more...)
}

// installServices installs CoreDNS, and the agent as docs/install.md describes.
func (c *Cluster) installServices() error {
	if _, err := c.Run("helm", InstallArgs()...); err != nil {
		return err
	}
	c.logf("chart installed")
	return c.InstallDNS()
}

// InstallDNS installs CoreDNS.
func (c *Cluster) InstallDNS() error {
	text, err := render("coredns.yaml", map[string]string{"Image": coreDNSImage, "DNS": DNSAddress})
	if err != nil {
		return err
	}
	file := filepath.Join(c.dir, "coredns.yaml")
	if err := os.WriteFile(file, text, 0o644); err != nil {
		return err
	}
	_, err = c.Kubectl("apply", "-f", file)
	return err
}

func (c *Cluster) awaitNodes(ctx context.Context) error {
	err := wait.PollUntilContextTimeout(ctx, time.Second, startTime, true, func(ctx context.Context) (bool, error) {
		list, err := c.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		for _, n := range c.Nodes {
			if n.kubelet.hasEnded() {
				return false, fmt.Errorf("the kubelet of %s has ended", n.Name)
			}
		}
		ready := 0
		for _, node := range list.Items {
			if slices.ContainsFunc(node.Status.Conditions, func(s corev1.NodeCondition) bool {
				return s.Type == corev1.NodeReady && s.Status == corev1.ConditionTrue
			}) {
				ready++
			}
		}
		return ready == len(c.Nodes), nil
	})
	if err != nil {
		return fmt.Errorf("nodes are not ready; see the logs in %s: %w", c.out, err)
	}
	c.logf("%d nodes ready", len(c.Nodes))
	return nil
}

func (c *Cluster) awaitServices() error {
	if _, err := c.Kubectl("-n", "kube-system", "rollout", "status", "daemonset/kube-ipvs", "--timeout="+startTime.String()); err != nil {
		return err
	}
	c.logf("kube-ipvs ready on all nodes")
	if _, err := c.Kubectl("-n", "kube-system", "rollout", "status", "deployment/coredns", "--timeout="+startTime.String()); err != nil {
		return err
	}
	c.logf("CoreDNS ready")
	return nil
}
