package chart

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/kube-ipvs/kube-ipvs/e2e/stories/image"
)

// kubeadmConfigMap is kubeadm's ConfigMap for kube-proxy in ipvs mode.
const kubeadmConfigMap = root + "/internal/config/testdata/kubeadm-ipvs.yaml"

func program(t *testing.T) string {
	t.Helper()
	recipe, err := image.Read(root)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := recipe.BuildAgent(dir, "test", ""); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "kube-ipvs")
}

func TestAgentTakesItsArguments(t *testing.T) {
	file := program(t)
	cases := map[string]values{
		"everything":    parse(t, everything),
		"kube-proxy":    parse(t, "kubeProxyConfig: {mode: ipvs, clusterCIDR: 10.244.0.0/16, ipvs: {scheduler: lc, strictARP: true}, healthzBindAddress: 0.0.0.0}"),
		"kubeadm's":     {"kubeProxyConfig": kubeProxyOfKubeadm(t)},
		"no metrics":    parse(t, "config: {metricsBindAddress: ''}"),
		"other ports":   parse(t, "{config: {healthzBindAddress: '0.0.0.0:10356', metricsBindAddress: '0.0.0.0:10349'}, healthPort: 10356, metrics: {port: 10349}}"),
		"metrics of v4": parse(t, "metrics: {bindAddress: 0.0.0.0}"),
	}
	for _, name := range presetNames(t) {
		cases["preset "+name] = complete(t, name)
	}
	for name, v := range cases {
		t.Run(name, func(t *testing.T) {
			objects := decode(t, mustRender(t, v).Manifest)
			container := daemonSet(t, v).Spec.Template.Spec.Containers[0]
			args := arguments(t, &container, objects)
			if out, err := exec.Command(file, append([]string{"config", "validate"}, args...)...).CombinedOutput(); err != nil {
				t.Fatalf("kube-ipvs config validate %q: %v\n%s", args, err, out)
			}
			checkPorts(t, file, args, &container)
		})
	}
}

// kubeProxyOfKubeadm returns what kubeadm writes for kube-proxy, without its ConfigMap.
func kubeProxyOfKubeadm(t *testing.T) map[string]any {
	t.Helper()
	var cm corev1.ConfigMap
	text, err := os.ReadFile(kubeadmConfigMap)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, &cm); err != nil {
		t.Fatal(err)
	}
	return parse(t, cm.Data["config.conf"])
}

// TestKubeconfigOfKubeProxy: the agent cannot read kube-proxy's kubeconfig unless a volume contains it.
func TestKubeconfigOfKubeProxy(t *testing.T) {
	const file = "/var/lib/kube-proxy/kubeconfig.conf"
	for mounts, want := range map[string]bool{
		"[]": false, "[{name: a, mountPath: /var/lib/kube}]": false, "[{name: a, mountPath: /var/lib/kube-proxy/}]": true, "[{name: a, mountPath: " + file + "}]": true,
	} {
		v := parse(t, "{extraVolumes: [{name: a, emptyDir: {}}], extraVolumeMounts: "+mounts+"}")
		v["kubeProxyConfig"] = kubeProxyOfKubeadm(t)
		if got := strings.Contains(mustRender(t, v).Manifest, "kubeconfig: "+file); got != want {
			t.Errorf("mounts %s: the configuration contains the kubeconfig: %t, want %t", mounts, got, want)
		}
	}
}

// arguments returns the container's arguments as the kubelet expands them, but with the configuration at a path that
// the test can write to.
func arguments(t *testing.T, container *corev1.Container, objects []runtime.Object) []string {
	t.Helper()
	if container.Args[0] != "run" {
		t.Fatalf("the container runs %q", container.Args)
	}
	var args []string
	for _, arg := range container.Args[1:] {
		if _, isConfig := strings.CutPrefix(arg, "--config="); isConfig {
			arg = "--config=" + configFile(t, objects)
		}
		args = append(args, strings.ReplaceAll(arg, "$(NODE_NAME)", "node-1"))
	}
	return args
}

func configFile(t *testing.T, objects []runtime.Object) string {
	t.Helper()
	for _, o := range objects {
		cm, ok := o.(*corev1.ConfigMap)
		if !ok || cm.Data["config.yaml"] == "" {
			continue
		}
		file := filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(file, []byte(cm.Data["config.yaml"]), 0o644); err != nil {
			t.Fatal(err)
		}
		return file
	}
	return kubeadmConfigMap
}

// checkPorts checks that the agent listens on the addresses that the probes and Prometheus use.
func checkPorts(t *testing.T, file string, args []string, container *corev1.Container) {
	t.Helper()
	var stderr bytes.Buffer
	show := exec.Command(file, append([]string{"config", "view", "-o", "json"}, args...)...)
	show.Stderr = &stderr
	out, err := show.Output()
	if err != nil {
		t.Fatalf("kube-ipvs config view: %v\n%s", err, stderr.Bytes())
	}
	var view struct {
		Configuration struct{ HealthzBindAddress, MetricsBindAddress string }
	}
	if err := json.Unmarshal(out, &view); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, port := range container.Ports {
		address := map[string]string{
			"health": view.Configuration.HealthzBindAddress, "metrics": view.Configuration.MetricsBindAddress,
		}[port.Name]
		if !strings.HasSuffix(address, ":"+strconv.Itoa(int(port.ContainerPort))) {
			t.Errorf("port %s is %d, but the agent listens on %q", port.Name, port.ContainerPort, address)
		}
	}
}
