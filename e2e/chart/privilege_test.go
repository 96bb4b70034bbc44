package chart

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

// rights lists the agent's rights in the cluster and the reason for each.
var rights = map[string]string{
	"list services":                         "Services to serve; and the UID of a Service for an Event",
	"watch services":                        "Services to serve",
	"list endpointslices.discovery.k8s.io":  "endpoints of Services",
	"watch endpointslices.discovery.k8s.io": "endpoints of Services",
	"list nodes":                            "the node's own pod ranges and zone",
	"watch nodes":                           "the node's own pod ranges and zone",
	"create events.events.k8s.io":           "report Problems as Events of the Services that have them",
}

// taintRights are the additional rights that startupTaint.enabled grants.
var taintRights = map[string]string{"patch nodes": "remove the startup taint"}

func TestRightsInTheCluster(t *testing.T) {
	withTaint := maps.Clone(rights)
	maps.Copy(withTaint, taintRights)
	for name, c := range map[string]struct {
		values values
		rights map[string]string
	}{
		"default": {values{}, rights}, "kubeadm": {presets(t, "kubeadm", "take-over"), rights}, "everything": {parse(t, everything), withTaint},
	} {
		t.Run(name, func(t *testing.T) {
			objects, rights := decode(t, mustRender(t, c.values).Manifest), c.rights
			got := map[string]bool{}
			for _, rule := range only[*rbacv1.ClusterRole](t, objects).Rules {
				if len(rule.ResourceNames)+len(rule.NonResourceURLs) > 0 {
					t.Errorf("rule with names or URLs: %v", rule)
				}
				for _, right := range flatten(rule) {
					got[right] = true
					if rights[right] == "" {
						t.Errorf("the right %q is new; add it to the table with a reason", right)
					}
				}
			}
			for right := range rights {
				if !got[right] {
					t.Errorf("the right %q is missing", right)
				}
			}
		})
	}
}

// flatten returns the rights of a rule as "verb resource.group".
func flatten(rule rbacv1.PolicyRule) []string {
	var all []string
	for _, group := range rule.APIGroups {
		for _, resource := range rule.Resources {
			for _, verb := range rule.Verbs {
				all = append(all, strings.TrimSuffix(fmt.Sprintf("%s %s.%s", verb, resource, group), "."))
			}
		}
	}
	return all
}

func TestPrivilegesOnTheNode(t *testing.T) {
	off, on, user := false, true, int64(0)
	container := &corev1.SecurityContext{
		RunAsUser: &user, RunAsGroup: &user,
		Privileged: &off, AllowPrivilegeEscalation: &off, ReadOnlyRootFilesystem: &on,
		Capabilities: &corev1.Capabilities{
			Drop: []corev1.Capability{"ALL"},
			Add:  []corev1.Capability{"NET_ADMIN", "NET_RAW"},
		},
		SELinuxOptions: &corev1.SELinuxOptions{Level: "s0", Type: "spc_t"},
	}
	pod := &corev1.PodSecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}}
	paths := []string{
		"/host/proc/sys/net <- /proc/sys/net", // sysctls of IPVS, ARP and conntrack
		"/run/xtables.lock <- /run/xtables.lock",
		"/run/kube-ipvs <- /run/kube-ipvs",
	}
	for name, v := range map[string]values{"default": {}, "kubeadm": presets(t, "kubeadm", "take-over"), "everything": parse(t, everything)} {
		t.Run(name, func(t *testing.T) {
			spec := daemonSet(t, v).Spec.Template.Spec
			if d := cmp.Diff(pod, spec.SecurityContext); d != "" {
				t.Errorf("security context of the pod (-want +got):\n%s", d)
			}
			if len(spec.InitContainers) != 0 || len(spec.Containers) != 1 {
				t.Fatalf("%d init containers and %d containers, want 0 and 1", len(spec.InitContainers), len(spec.Containers))
			}
			if d := cmp.Diff(container, spec.Containers[0].SecurityContext); d != "" {
				t.Errorf("security context of the container (-want +got):\n%s", d)
			}
			if spec.HostPID || spec.HostIPC || !spec.HostNetwork {
				t.Errorf("the pod uses the host's namespaces PID: %t, IPC: %t, network: %t; want only the network", spec.HostPID, spec.HostIPC, spec.HostNetwork)
			}
			if d := cmp.Diff(paths, hostPaths(&spec)); d != "" {
				t.Errorf("host paths (-want +got):\n%s", d)
			}
			if spec.PriorityClassName != "system-node-critical" || spec.DNSPolicy != corev1.DNSDefault {
				t.Errorf("priority class %q, DNS policy %q", spec.PriorityClassName, spec.DNSPolicy)
			}
		})
	}
}

func hostPaths(spec *corev1.PodSpec) []string {
	var paths []string
	for _, volume := range spec.Volumes {
		if volume.HostPath == nil {
			continue
		}
		for _, mount := range spec.Containers[0].VolumeMounts {
			if mount.Name == volume.Name {
				paths = append(paths, mount.MountPath+" <- "+volume.HostPath.Path)
			}
		}
	}
	return paths
}

// TestAgentFindsTheSysctls: the chart and the agent use the same path outside /proc, because runtimes refuse mounts
// inside /proc.
func TestAgentFindsTheSysctls(t *testing.T) {
	source, err := os.ReadFile(filepath.Join(root, "internal/kernel/netdev/sysctl.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, mount := range daemonSet(t, values{}).Spec.Template.Spec.Containers[0].VolumeMounts {
		if mount.Name != "sysctls" {
			continue
		}
		tree, isNet := strings.CutSuffix(mount.MountPath, "/net")
		if !isNet || strings.HasPrefix(tree, "/proc") || !strings.Contains(string(source), fmt.Sprintf("%q", tree)) {
			t.Errorf("sysctls are mounted at %s, where internal/kernel/netdev does not look", mount.MountPath)
		}
		return
	}
	t.Error("no sysctls are mounted")
}

// TestProbesDoNotRestartADrainingNode: no probe uses /healthz, which fails on a node that load balancers should
// avoid.
func TestProbesDoNotRestartADrainingNode(t *testing.T) {
	c := daemonSet(t, values{}).Spec.Template.Spec.Containers[0]
	if p := c.LivenessProbe.HTTPGet.Path; p != "/livez" {
		t.Errorf("liveness probe uses %s, want /livez", p)
	}
	// An agent that has not reached the API server is not live, but a restart would not help.
	if p := c.StartupProbe; p.HTTPGet.Path != "/readyz" || p.PeriodSeconds*p.FailureThreshold < 12*60*60 {
		t.Errorf("startup probe uses %s for %d s, want /readyz for 12 hours", p.HTTPGet.Path, p.PeriodSeconds*p.FailureThreshold)
	}
	if p := c.ReadinessProbe.HTTPGet.Path; p != "/readyz" {
		t.Errorf("readiness probe uses %s, want /readyz", p)
	}
}
