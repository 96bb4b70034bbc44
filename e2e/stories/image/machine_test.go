package image

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

// TestMachine runs the container in the machine's own network namespace, as hostNetwork does. The container
// can write global sysctls only there.
func TestMachine(t *testing.T) {
	labtest.Need(t)
	p := &pod{node: &cluster.Node{Host: &cluster.Host{Name: "machine"}}, files: t.TempDir()}
	p.spec = defaultDaemonSet(t).Spec.Template.Spec
	p.spec.AutomountServiceAccountToken = nil
	c := p.command(t, "preflight")
	preflight := exec.Command(c.Args[0], c.Args[1:]...)
	preflight.Env, preflight.Dir, preflight.SysProcAttr = c.Env, c.Dir, &syscall.SysProcAttr{}
	c.SysProcAttr(preflight.SysProcAttr)
	out, err := preflight.CombinedOutput()
	if err != nil {
		t.Errorf("preflight: %v\n%s", err, out)
	}
	limit, err := os.Stat("/proc/sys/net/netfilter/nf_conntrack_max")
	if err != nil {
		t.Fatal(err)
	}
	may := limit.Mode().Perm()&0o222 != 0
	if refused := strings.Contains(string(out), "nf_conntrack_max") && strings.Contains(string(out), "is not writable"); refused == may {
		t.Errorf("the conntrack limit is writable: %t, but preflight prints:\n%s", may, out)
	}
	if may && len(out) > 0 {
		t.Logf("preflight:\n%s", out)
	}
}

// defaultDaemonSet rejects unknown fields.
func defaultDaemonSet(t *testing.T) *appsv1.DaemonSet {
	t.Helper()
	for document := range strings.SplitSeq(string(read(t, checkout+"/charts/manifests/default.yaml")), "\n---\n") {
		if !strings.Contains(document, "\nkind: DaemonSet\n") {
			continue
		}
		var ds appsv1.DaemonSet
		if err := yaml.UnmarshalStrict([]byte(document), &ds); err != nil {
			t.Fatalf("%v\n%s", err, document)
		}
		return &ds
	}
	t.Fatal("charts/manifests/default.yaml has no DaemonSet")
	return nil
}
