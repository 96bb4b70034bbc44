package realcluster

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/kube-ipvs/kube-ipvs/e2e/stories/image"
	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/upstream"
)

// Prepare builds everything that a cluster needs, on the host. It does not rebuild existing files. agent is the
// directory with the agent's image from "make image".
func Prepare(ctx context.Context, checkout, agent string, out io.Writer) error {
	if os.Geteuid() != 0 {
		return errors.New("unpacking images needs root")
	}
	if err := upstream.Build(ctx, checkout, upstream.Cluster, out); err != nil {
		return err
	}
	if err := buildHere(ctx, checkout, checkout, "./e2e/testbed/pause", "pause"); err != nil {
		return err
	}
	work, err := os.MkdirTemp(folder(checkout), "images-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	images, err := makeImages(ctx, checkout, agent, work)
	if err != nil {
		return err
	}
	sum := sha256.New()
	var archives []string
	for n, i := range images {
		file := filepath.Join(work, fmt.Sprintf("%d.tar", n))
		digest, err := i.write(file)
		if err != nil {
			return err
		}
		fmt.Fprintln(sum, digest)
		archives = append(archives, file)
	}
	if err := unpack(ctx, checkout, archives, fmt.Sprintf("%x", sum.Sum(nil))[:12], out); err != nil {
		return err
	}
	return buildHere(ctx, checkout, filepath.Join(checkout, "e2e", "chart"), "helm.sh/helm/v4/cmd/helm", "helm")
}

func folder(checkout string) string { return filepath.Join(checkout, ".cache", "realcluster") }

func pauseProgram(checkout string) string { return filepath.Join(folder(checkout), "bin", "pause") }

func buildHere(ctx context.Context, checkout, dir, pkg, name string) error {
	build := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-ldflags=-s -w", "-o", filepath.Join(folder(checkout), "bin", name), pkg)
	build.Dir = dir
	if text, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", name, err, text)
	}
	return nil
}

// Kubernetes' tests pull images with these names.
const (
	AgnhostImage = "registry.k8s.io/e2e-test-images/agnhost:2.63.0"
	pauseImage   = "registry.k8s.io/pause:3.10.2"
	coreDNSImage = "registry.k8s.io/coredns/coredns:v1.14.7"
	invalidImage = "registry.k8s.io/e2e-test-images/regression-issue-74839:1.4" // sends packets outside the window
	// AgentImage is the default image of the chart.
	AgentImage = "docker.io/kube-ipvs/kube-ipvs:v0.1.0"
	// pagesImage is the same image as the pages name it.
	pagesImage = "registry.example/kube-ipvs/kube-ipvs:v0.1.0"
	// KubeProxyImage is used to test migrations to the agent and back.
	KubeProxyImage = "registry.k8s.io/kube-proxy:v1.36.3"
)

// toolImages lists images that agnhost's image can replace, because it contains the commands that Kubernetes' tests run in them.
var toolImages = []string{
	"registry.k8s.io/e2e-test-images/busybox:1.37.0-1", "registry.k8s.io/e2e-test-images/glibc-dns-testing:2.0.0",
	"registry.k8s.io/build-image/distroless-iptables:v0.9.6",
}

func makeImages(ctx context.Context, checkout, agent, work string) ([]archive, error) {
	root := func(name string) string { return filepath.Join(work, name) }
	if err := copyFile(pauseProgram(checkout), root("pause")+"/pause"); err != nil {
		return nil, err
	}
	if err := installUpstream(checkout, root("coredns"), "/coredns", upstream.CoreDNS); err != nil {
		return nil, err
	}
	if err := makeTmp(root("coredns")); err != nil {
		return nil, err
	}
	if err := installUpstream(checkout, root("invalid"), "/"+upstream.InvalidPackets, upstream.InvalidPackets); err != nil {
		return nil, err
	}
	if err := agnhostRoot(ctx, checkout, root("agnhost")); err != nil {
		return nil, err
	}
	if err := kubeProxyRoot(checkout, agent, root("kube-proxy")); err != nil {
		return nil, err
	}
	recipe, err := image.Read(checkout)
	if err != nil {
		return nil, err
	}
	start, err := recipe.Start()
	if err != nil {
		return nil, err
	}
	path := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	return []archive{
		{names: []string{pauseImage}, root: root("pause"), entrypoint: []string{"/pause"}, environment: path},
		{names: []string{coreDNSImage}, root: root("coredns"), entrypoint: []string{"/coredns"}, environment: path},
		{names: []string{AgnhostImage}, root: root("agnhost"), entrypoint: []string{"/agnhost"}, arguments: []string{"pause"}, environment: path},
		{names: []string{invalidImage}, root: root("invalid"), entrypoint: []string{"/" + upstream.InvalidPackets}, environment: path},
		{names: toolImages, root: root("agnhost"), arguments: []string{"sh"}, environment: path},
		{names: []string{KubeProxyImage}, root: root("kube-proxy"), entrypoint: []string{"/usr/local/bin/kube-proxy"}, environment: path},
		{names: []string{AgentImage, pagesImage}, root: agent, entrypoint: start.Entrypoint, arguments: start.Arguments, environment: start.Environment},
	}, nil
}
