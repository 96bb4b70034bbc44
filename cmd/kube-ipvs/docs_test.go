//go:build linux

package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/kube-ipvs/kube-ipvs/internal/clidocs"
	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/goldentest"
	"github.com/kube-ipvs/kube-ipvs/internal/machine"
)

const cliDocs = "../../docs/cli"

// TestCommandReference: docs/cli has exactly one page for each command, generated from its help.
func TestCommandReference(t *testing.T) {
	files := clidocs.Files(newRoot(machine.This()))
	if *goldentest.Update {
		for name, content := range files {
			path := filepath.Join(cliDocs, name)
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	var there []string
	err := filepath.WalkDir(cliDocs, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			name, _ := filepath.Rel(cliDocs, path)
			there = append(there, filepath.ToSlash(name))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range there {
		if _, wanted := files[name]; !wanted {
			t.Errorf("docs/cli/%s documents a command that does not exist; remove the page", name)
		}
	}
	for name, want := range files {
		if !slices.Contains(there, name) {
			t.Errorf("docs/cli/%s is missing; run `make golden`", name)
			continue
		}
		have, err := os.ReadFile(filepath.Join(cliDocs, name))
		if err != nil {
			t.Fatal(err)
		}
		if string(have) != want {
			t.Errorf("docs/cli/%s differs from the command's help; run `make golden`", name)
		}
	}
}

// foreignFlags are other programs' flags that the pages mention without naming the program.
var foreignFlags = map[string]string{
	"--ctstate": "iptables", "--disable": "k3s", "--disable-agent": "k3s", "--dst-type": "iptables", "--ip-masq": "flanneld", "--insecure-ignore-tlog": "cosign",
	"--register-with-taints": "kubelet", "--rootless": "runc", "--service-node-port-range": "kube-apiserver", "--set": "helm", "--skip-phases": "kubeadm",
}

// TestPagesNameCommands: every kube-ipvs command line and every flag in the pages exists.
func TestPagesNameCommands(t *testing.T) {
	root := newRoot(machine.This())
	flag := regexp.MustCompile(`^--[a-z][a-z-]+`)
	for name, page := range handwritten(t) {
		if name == "docs/kubectl.md" || name == "docs/ipvsadm.md" {
			continue // these pages describe other programs' flags; cmd/kubectl-ipvs checks the first page
		}
		for _, mistake := range clidocs.Mistakes(root, page) {
			t.Errorf("%s: %s", name, mistake)
		}
		for _, line := range clidocs.CodeLines(page) {
			if f := flag.FindString(line); f != "" && foreignFlags[f] == "" && !slices.ContainsFunc(root.Commands(), func(c *cobra.Command) bool { return clidocs.HasFlag(c, f) }) {
				t.Errorf("%s: no command has the flag %s", name, f)
			}
		}
	}
}

func handwritten(t *testing.T) map[string]string {
	t.Helper()
	pages := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "charts/kube-ipvs/README.md"} {
		files, err := filepath.Glob(filepath.Join("../..", pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(files), err)
		}
		for _, file := range files {
			if filepath.Dir(file) == cliDocs {
				continue
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			pages[strings.TrimPrefix(file, "../../")] = string(text)
		}
	}
	return pages
}

// TestPagesNameExitStatuses: the exit statuses in the verdict tables and in the compatibility promise match the
// commands.
func TestPagesNameExitStatuses(t *testing.T) {
	pages := handwritten(t)
	statuses := map[string]int{
		finding.Well: 0, string(finding.Warning): int(statusWarnings), string(finding.Broken): int(statusBroken), "none": int(statusUnexamined),
	}
	for _, v := range []explain.Verdict{
		explain.Passes, explain.Depends, explain.Unclear, explain.Partly, explain.Differs, explain.NoService, explain.Stops, explain.Unknown,
	} {
		var status statusError
		cmd := &cobra.Command{}
		cmd.SetOut(io.Discard)
		_ = errors.As((&inspection{output: asJSON}).printExplanations(cmd, explanations{Items: []explain.Explanation{{Verdict: v}}}, false), &status)
		statuses[string(v)] = int(status)
	}
	row := regexp.MustCompile("(?m)^\\| (?:([0-9]) \\| `?(\\w+)`? \\|.*|`?(\\w+)`? \\|.*\\| ([0-9])) ?\\|$")
	found := 0
	for _, m := range row.FindAllStringSubmatch(pages["docs/inspection.md"], -1) {
		found++
		verdict, status := m[2]+m[3], m[1]+m[4]
		if want, exists := statuses[verdict]; !exists || strconv.Itoa(want) != status {
			t.Errorf("docs/inspection.md: verdict %s: the exit status is %d (exists: %t), but the page has %s", verdict, want, exists, status)
		}
	}
	if found != len(statuses) {
		t.Errorf("docs/inspection.md has %d verdicts with exit statuses, want %d", found, len(statuses))
	}
	for _, promise := range []string{
		fmt.Sprintf("of `doctor`: 0 well, %d warnings, %d broken, %d not examined.", statusWarnings, statusBroken, statusUnexamined),
		fmt.Sprintf("%d if `plan` found a difference, `explain` found that a packet does not arrive, or `status` found the agent unhealthy", statusStops),
	} {
		if !strings.Contains(pages["docs/compatibility.md"], promise) {
			t.Errorf("docs/compatibility.md does not contain %q", promise)
		}
	}
	if statusStops != statusUnwell {
		t.Errorf("explain exits with status %d, but status exits with %d", statusStops, statusUnwell)
	}
}

// TestCompletion: every installed shell accepts its script, and the binary answers the scripts' completion requests.
func TestCompletion(t *testing.T) {
	for shell, want := range map[string]string{"bash": "complete -o default", "zsh": "#compdef kube-ipvs", "fish": "complete -c kube-ipvs"} {
		out, stderr, status := call(t, "completion", shell)
		if status != 0 || stderr != "" || !strings.Contains(out, want) {
			t.Errorf("%s: status %d, stderr %q, %d bytes without %q", shell, status, stderr, len(out), want)
		}
		if path, err := exec.LookPath(shell); err == nil {
			check := exec.CommandContext(t.Context(), path, "-n")
			check.Stdin = strings.NewReader(out)
			if complaint, err := check.CombinedOutput(); err != nil {
				t.Errorf("%s rejects its completion script: %v\n%s", shell, err, complaint)
			}
		}
	}
	for _, c := range []struct{ typed, want string }{
		{"services -o ", "wide"},
		{"explain x -o ", "yaml"},
		{"completion ", "fish"},
		{"plan -o ", "yaml"},
		{"cleanup -o ", "json"},
		{"config view -o ", "json"},
		{"cleanup --keep", "--keep-services"},
		{"run --init", "--init-only"},
		{"con", "conns"},
	} {
		out, _, status := call(t, append([]string{"__complete"}, strings.Split(c.typed, " ")...)...)
		if status != 0 || !strings.Contains(out, c.want) {
			t.Errorf("completions for %q: status %d, %q, which must include %s", c.typed, status, out, c.want)
		}
	}
	if _, stderr, status := call(t, "completion", "tcsh"); status != 2 || !strings.Contains(stderr, "zsh") {
		t.Errorf("tcsh: status %d, %q", status, stderr)
	}
}

// TestInspectionCommandLines: a command rejects an invalid command line before it queries the agent or the kernel.
func TestInspectionCommandLines(t *testing.T) {
	for _, c := range []struct{ line, want string }{
		{"services -o xml", "table, wide, json, yaml"},
		{"services web", "NAMESPACE/NAME"},
		{"explain 10.96.0.1:0", "ADDRESS:PORT"},
		{"explain 10.96.0.1:80 --from 10.0.0.1:0", "--from"},
		{"explain 10.96.0.1:80 --from fd00::1", "address families"},
		{"services --status-socket=", "--status-socket is empty"},
		{"explain", "ADDRESS:PORT[/PROTOCOL]"},
		{"conns a/b/c", "NAMESPACE/NAME"},
		{"status surplus", "surplus"},
		{"history surplus", "surplus"},
		{"history --service web", "NAMESPACE/NAME"},
		{"history --since -1s", "--since"},
		{"history --limit -1", "--limit"},
		{"explain", "arg"},
		{"explain 10.96.0.1", "ADDRESS:PORT"},
		{"explain 10.96.0.1:80/icmp", "TCP, UDP or SCTP"},
		{"explain 10.96.0.1:80 --interface nope", `--interface "nope": use an interface in this command's network namespace: `},
		{"plan --filename=", "--filename is empty"},
		{"explain 10.96.0.1:80 --from here", "--from \"here\""},
		{"explain 10.96.0.1:80 -o table", "text, json, yaml"},
	} {
		out, stderr, status := call(t, strings.Split(c.line, " ")...)
		if status != 2 || out != "" || !strings.Contains(stderr, c.want) {
			t.Errorf("%s: status %d, stdout %q, stderr %q, want %q", c.line, status, out, stderr, c.want)
		}
	}
}
