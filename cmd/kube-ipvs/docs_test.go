package main

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/clidocs"
	"github.com/kube-ipvs/kube-ipvs/internal/goldentest"
)

const cliDocs = "../../docs/cli"

// TestCommandReference: docs/cli has exactly one page for each command, generated from its help.
func TestCommandReference(t *testing.T) {
	files := clidocs.Files(newRoot(thisMachine()))
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
			t.Errorf("docs/cli/%s documents no command; remove it", name)
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
			t.Errorf("after %q: status %d, %q, want %s among them", c.typed, status, out, c.want)
		}
	}
	if _, stderr, status := call(t, "completion", "tcsh"); status != 2 || !strings.Contains(stderr, "zsh") {
		t.Errorf("tcsh: status %d, %q", status, stderr)
	}
}

// TestInspectionCommandLines: invalid command lines are rejected before the agent or the kernel is queried.
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
		{"explain", "arg"},
		{"explain 10.96.0.1", "ADDRESS:PORT"},
		{"explain 10.96.0.1:80/icmp", "TCP, UDP or SCTP"},
		{"explain 10.96.0.1:80 --interface nope", `--interface "nope": use an interface of the network namespace that this command runs in: `},
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
