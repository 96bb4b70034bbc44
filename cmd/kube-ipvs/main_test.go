//go:build linux

package main

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/goldentest"
	"github.com/kube-ipvs/kube-ipvs/internal/machine"
)

func call(t *testing.T, args ...string) (stdout, stderr string, status int) {
	t.Helper()
	var out, err bytes.Buffer
	status = execute(t.Context(), machine.This(), args, &out, &err)
	return out.String(), err.String(), status
}

func golden(t *testing.T, name, got string) {
	t.Helper()
	goldentest.Compare(t, filepath.Join("testdata", name), got)
}

func TestPlanOfManifests(t *testing.T) {
	// Without --conntrack-max-per-core 0, the plan would depend on the number of CPUs of this machine.
	args := []string{"plan", "-f", "testdata/web", "--hostname-override", "node-1", "--cluster-cidr", "10.244.0.0/16", "--conntrack-max-per-core", "0"}
	out, stderr, status := call(t, args...)
	if status != 0 || stderr != "" {
		t.Fatalf("status %d, stderr %q", status, stderr)
	}
	golden(t, "plan.golden", out)

	out, _, status = call(t, append(args, "-o", "json")...)
	if status != 0 || !json.Valid([]byte(out)) {
		t.Fatalf("status %d, output %s", status, out)
	}
	golden(t, "plan.json.golden", out)
}

// TestPlanOfANode: node ports use only the addresses of the Node manifest named by --hostname-override. An external IP that is another
// node's address is not served, and causes a Problem.
func TestPlanOfANode(t *testing.T) {
	for node, lines := range map[string]map[string]bool{
		"node-1": {"-t 192.0.2.1:30080 ": true, "-t 198.51.100.1:30080 ": true, "-t 192.0.2.2:30080 ": false, "192.0.2.2:80 ": false},
		"node-2": {"-t 192.0.2.2:30080 ": true, "-t 192.0.2.2:80 ": true, "-t 192.0.2.1:30080 ": false, "192.0.2.2/32": false},
		"node-3": {":30080 ": false, "192.0.2.2:80 ": false},
	} {
		out, stderr, status := call(t, "plan", "-f", "testdata/nodes", "--hostname-override", node)
		if left := strings.Contains(stderr, "the Node object node-2 has this address"); left != (node != "node-2") || left != (status == 1) {
			t.Fatalf("%s: status %d, stderr %q", node, status, stderr)
		}
		for line, is := range lines {
			if strings.Contains(out, line) != is {
				t.Errorf("%s: %q is in the plan: %v, want %v\n%s", node, line, !is, is, out)
			}
		}
	}
}

// TestPlanReportsEveryProblem: plan names the field and the value of each invalid object, and plans everything else.
func TestPlanReportsEveryProblem(t *testing.T) {
	out, stderr, status := call(t, "plan", "-f", "testdata/bad", "--hostname-override", "node-1")
	if status != 1 {
		t.Errorf("status %d, want 1", status)
	}
	golden(t, "bad.golden", stderr)
	for _, want := range []string{"ipvsadm -A -t 10.96.0.1:443", "ipvsadm -A -t 10.96.0.1:8443"} {
		if !strings.Contains(out, want) {
			t.Errorf("the plan lacks %q", want)
		}
	}
	for _, never := range []string{"10.96.0.2", "10.96.0.300"} {
		if strings.Contains(out, never) {
			t.Errorf("the plan contains %q, which is invalid", never)
		}
	}
}

func TestInvalidCommandLines(t *testing.T) {
	for _, c := range []struct {
		args   []string
		status int
		want   []string
	}{
		{[]string{"plan", "-f", "testdata/web", "--ipvs-scheduler", "fastest"}, 2, []string{`--ipvs-scheduler "fastest"`, "wrr", "--help"}},
		{[]string{"plan", "-f", "testdata/web", "--cluster-cidr", "10.244.0.0/33"}, 2, []string{`--cluster-cidr "10.244.0.0/33"`, "10.244.0.0/16"}},
		{[]string{"plan", "-f", "testdata/web", "--iptables-masquerade-bit", "32"}, 2, []string{"--iptables-masquerade-bit 32", "0 to 31"}},
		{[]string{"plan", "-f", "testdata/web", "--detect-local-mode", "Guess"}, 2, []string{`"Guess"`, "InterfaceNamePrefix"}},
		{[]string{"plan", "-f", "testdata/web", "--detect-local-mode", "BridgeInterface"}, 2, []string{"--pod-bridge-interface", "1 to 15"}},
		{[]string{"plan", "-f", "testdata/web", "-o", "xml"}, 2, []string{`--output "xml"`, "json"}},
		{[]string{"plan", "-f", "testdata/missing"}, 1, []string{"--filename: read manifests in testdata/missing", "use a directory of Service,"}},
		{[]string{"plan", "-f", "testdata/bad.golden"}, 1, []string{"read manifests in testdata/bad.golden", "use the directory that contains it (testdata)"}},
		{[]string{"plan", "-f", "testdata/bad.golden/deeper"}, 1, []string{"read manifests in testdata/bad.golden/deeper", "use a directory of Service,"}},
		{[]string{"plan", "-f", "testdata"}, 1, []string{"contains no .yaml, .yml or .json file"}},
		{[]string{"plan", "--manifests", "testdata/bad.golden"}, 1, []string{"use the directory that contains it (testdata)"}},
		{[]string{"run", "--manifests", "x", "--kubeconfig", "y"}, 2, []string{"--manifests", "--kubeconfig", "one of them"}},
		{[]string{"run", "--log-level", "loud"}, 2, []string{`"loud"`, "debug"}},
		{[]string{"run", "--ipvs-sync-period", "1ms"}, 2, []string{"--ipvs-sync-period", "1s"}},
		{[]string{"run", "--ipvs-scheduler", "fastest"}, 2, []string{`--ipvs-scheduler "fastest"`, "--help"}},
		{[]string{"plan", "--cluster-cidr", "zz"}, 2, []string{`--cluster-cidr "zz"`, "--help"}},
		{[]string{"run", "surplus"}, 2, []string{"surplus"}},
		{[]string{"run", "--no-such-flag"}, 2, []string{"--no-such-flag"}},
		{[]string{"walk"}, 2, []string{`unknown command "kube-ipvs walk"; use one of bundle, `, "'kube-ipvs --help'"}},
		{[]string{"sttus"}, 2, []string{`"kube-ipvs sttus"; did you mean status?`}},
		{[]string{"sttus", "-o", "json"}, 2, []string{`"kube-ipvs sttus"; did you mean status?`}},
		{[]string{"-o", "json"}, 2, []string{"unknown shorthand flag: 'o'"}},
		{[]string{"config", "vieww", "--config", "x"}, 2, []string{`"kube-ipvs config vieww"; did you mean view?`}},
		{[]string{"status", "shop/web"}, 2, []string{`"shop/web": kube-ipvs status takes no arguments; usage: kube-ipvs status`}},
		{[]string{"config", "walk"}, 2, []string{`"kube-ipvs config walk"; use one of convert, validate, view`, "'kube-ipvs config --help'"}},
		{[]string{"help", "walk"}, 2, []string{`unknown command "kube-ipvs walk"; use one of bundle, `}},
		{[]string{"help", "config", "vieww"}, 2, []string{`"kube-ipvs config vieww"; did you mean view?`}},
		{[]string{"help", "plan", "surplus"}, 2, []string{`unknown command "kube-ipvs plan surplus"`}},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			out, stderr, status := call(t, c.args...)
			if status != c.status || out != "" {
				t.Errorf("status %d, want %d; stdout %q", status, c.status, out)
			}
			for _, want := range c.want {
				if !strings.Contains(stderr, want) {
					t.Errorf("stderr lacks %q:\n%s", want, stderr)
				}
			}
		})
	}
}

func TestHelpHasExamples(t *testing.T) {
	for _, cmd := range newRoot(machine.This()).Commands() {
		if cmd.Hidden {
			continue
		}
		if cmd.Example == "" || cmd.Short == "" {
			t.Errorf("%s: help lacks an example or a summary", cmd.CommandPath())
		}
		out, _, status := call(t, cmd.Name(), "--help")
		if status != 0 || !strings.Contains(out, "Usage:") && cmd.Name() != "ipvsadm" {
			t.Errorf("%s --help: status %d, %q", cmd.CommandPath(), status, out)
		}
	}
}

func TestVersion(t *testing.T) {
	out, _, status := call(t, "version", "-o", "json")
	var info versionInfo
	if err := json.Unmarshal([]byte(out), &info); err != nil || status != 0 || info.Version == "" || info.Go == "" {
		t.Errorf("status %d, %v, %q", status, err, out)
	}
}

// TestPreflightTakesAgentFlags: preflight accepts the agent's flags, because `kubectl ipvs preflight` passes them on.
func TestPreflightTakesAgentFlags(t *testing.T) {
	out, stderr, _ := call(t, "preflight", "--hostname-override=node-1", "--metrics-bind-address=127.0.0.1:1", "--ipvs-scheduler=nope", "-o", "json")
	if !strings.Contains(stderr, "ipvs-scheduler") {
		t.Errorf("the flags are not read: %q %q", out, stderr)
	}
	if help, _, _ := call(t, "preflight", "--help"); strings.Contains(help, "--metrics-bind-address") {
		t.Errorf("flags that have no effect are not hidden:\n%s", help)
	}
}

// TestPreflightUserspace: preflight finds nothing missing, and says what this data plane cannot do. Commands that read
// the kernel do not guess another data plane.
func TestPreflightUserspace(t *testing.T) {
	out, stderr, status := call(t, "preflight", "--data-plane", "userspace")
	if status != 0 || stderr != "" || !strings.Contains(out, "pods and other hosts cannot connect") || !strings.Contains(out, "balanced by userspace") {
		t.Errorf("status %d, %s%s", status, stderr, out)
	}
	if _, stderr, status := call(t, "plan", "--data-plane", "userspace", "--manifests", "testdata/web"); status != 1 || !strings.Contains(stderr, "no rules or virtual servers") {
		t.Errorf("plan: status %d, %s", status, stderr)
	}
}
