package image

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

const tokenFolder = "/var/run/secrets/kubernetes.io/serviceaccount"

// criticalScore is the oom_score_adj that the kubelet gives to pods of class system-node-critical.
const criticalScore = -997

// pod is the agent's pod, started as the kubelet and a container runtime would.
type pod struct {
	node   *cluster.Node
	spec   corev1.PodSpec
	files  string // the node's own files, if it does not share the machine's
	config map[string]string
	token  map[string]string
}

func (p *pod) container() *corev1.Container { return &p.spec.Containers[0] }

// command starts a program from the image as the container runtime would.
func (p *pod) command(t *testing.T, args ...string) cluster.Command {
	t.Helper()
	start, err := recipe(t).Start()
	if err != nil {
		t.Fatal(err)
	}
	contain := slices.Concat([]string{programOf(t, "KUBE_IPVS_CONTAIN"), "-root", programOf(t, "KUBE_IPVS_IMAGE")}, p.privileges(t), p.mounts(t))
	return cluster.Command{
		Args: slices.Concat(contain, []string{"--"}, start.Entrypoint, args),
		Env:  slices.Concat(start.Environment, p.environment()),
		Dir:  "/",
		SysProcAttr: func(attributes *syscall.SysProcAttr) { // hostNetwork, but neither hostPID nor hostIPC
			attributes.Cloneflags |= syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC
		},
	}
}

// programOf returns a path that `make e2e` passes in a variable.
func programOf(t *testing.T, variable string) string {
	t.Helper()
	path := os.Getenv(variable)
	switch {
	case path == "" && os.Getenv("KUBE_IPVS_LAB") == "1":
		t.Fatalf("%s is not set; use `make e2e`", variable)
	case path == "":
		t.Skip("NOT RUN: this test needs the lab; use make e2e PKG=./e2e/stories/image")
	}
	return path
}

// The security context must explicitly request every restriction that e2e/testbed/contain applies by default.
func (p *pod) privileges(t *testing.T) []string {
	t.Helper()
	context, pod := p.container().SecurityContext, p.spec
	isFalse := func(b *bool) bool { return b != nil && !*b }
	switch {
	case !isFalse(context.Privileged), !isFalse(context.AllowPrivilegeEscalation):
		t.Fatal("the container is privileged, or privilege escalation is allowed")
	case context.ReadOnlyRootFilesystem == nil || !*context.ReadOnlyRootFilesystem:
		t.Fatal("the container's root is writable")
	case context.RunAsUser == nil || *context.RunAsUser != 0:
		t.Fatal("the container does not run as user 0")
	case !slices.Equal(context.Capabilities.Drop, []corev1.Capability{"ALL"}):
		t.Fatalf("the container drops the capabilities %v, want ALL", context.Capabilities.Drop)
	case pod.SecurityContext.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault:
		t.Fatalf("the seccomp profile is %s", pod.SecurityContext.SeccompProfile.Type)
	case !pod.HostNetwork || pod.HostPID || pod.HostIPC:
		t.Fatal("the pod uses host namespaces other than the network")
	}
	return []string{"-capabilities", strings.Join(capabilities(p.container()), ","), "-oom-score-adj", fmt.Sprint(criticalScore)}
}

func capabilities(c *corev1.Container) []string {
	var names []string
	for _, capability := range c.SecurityContext.Capabilities.Add {
		names = append(names, string(capability))
	}
	return names
}

func (p *pod) environment() []string {
	var all []string
	for _, variable := range p.container().Env {
		value := variable.Value
		if variable.ValueFrom != nil && variable.ValueFrom.FieldRef.FieldPath == "spec.nodeName" {
			value = p.node.Name
		}
		all = append(all, variable.Name+"="+value)
	}
	return all
}

func (p *pod) arguments() []string {
	args := slices.Clone(p.container().Args)
	for _, variable := range p.environment() {
		name, value, _ := strings.Cut(variable, "=")
		for i := range args {
			args[i] = strings.ReplaceAll(args[i], "$("+name+")", value)
		}
	}
	return args
}

func (p *pod) mounts(t *testing.T) []string {
	t.Helper()
	volumes := map[string]corev1.Volume{}
	for _, volume := range p.spec.Volumes {
		volumes[volume.Name] = volume
	}
	var flags []string
	add := func(source, target string, readOnly bool) {
		flags = append(flags, "-mount", source+":"+target+map[bool]string{true: ":ro"}[readOnly])
	}
	for _, m := range p.container().VolumeMounts {
		switch volume := volumes[m.Name]; {
		case volume.HostPath != nil:
			add(p.hostPath(t, volume.HostPath), m.MountPath, m.ReadOnly)
		case volume.ConfigMap != nil:
			add(p.folder(t, "volumes/"+m.Name, p.config), m.MountPath, m.ReadOnly)
		case volume.Secret != nil: // the user may create it; here it is empty
			add(p.folder(t, "volumes/"+m.Name, nil), m.MountPath, m.ReadOnly)
		default:
			t.Fatalf("volume mount %s: no such volume, or this test does not support its type", m.Name)
		}
	}
	if p.spec.AutomountServiceAccountToken != nil && *p.spec.AutomountServiceAccountToken {
		add(p.folder(t, "volumes/token", p.token), tokenFolder, true)
	}
	return flags
}

// Under /proc/sys/net, processes see the values of their own network namespace.
func (p *pod) hostPath(t *testing.T, volume *corev1.HostPathVolumeSource) string {
	t.Helper()
	if volume.Path == "/proc/sys/net" {
		return volume.Path
	}
	path := filepath.Join(p.files, volume.Path)
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	switch *volume.Type {
	case corev1.HostPathDirectoryOrCreate:
		err = errors.Join(err, os.MkdirAll(path, 0o755))
	case corev1.HostPathFileOrCreate:
		if _, missing := os.Stat(path); missing != nil {
			err = errors.Join(err, os.WriteFile(path, nil, 0o644))
		}
	default:
		err = fmt.Errorf("this test does not support host paths of type %s, except /proc/sys/net", *volume.Type)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func (p *pod) folder(t *testing.T, name string, files map[string]string) string {
	t.Helper()
	path := filepath.Join(p.files, name)
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
	for file, text := range files {
		if err := os.WriteFile(filepath.Join(path, file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return path
}
