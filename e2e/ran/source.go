package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/e2e/bench"
	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/upstream"
)

// sourceFiles prints the files of the module's packages that go list lists, including embedded files.
const sourceFiles = `{{with .Module}}{{if .Main}}{{range $.GoFiles}}{{$.Dir}}/{{.}}
{{end}}{{range $.EmbedFiles}}{{$.Dir}}/{{.}}
{{end}}{{end}}{{end}}`

// agentSource returns a digest of the source code of the agent in the checkout at root, and of the versions that it requires. It needs no
// history, which some clones lack.
func agentSource(root string) (string, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return "", err
	}
	list := exec.Command("go", "list", "-deps", "-f", sourceFiles, "./internal/daemon")
	list.Dir, list.Env = root, append(os.Environ(), "GOOS=linux", "GOARCH=amd64", "CGO_ENABLED=0")
	var complaint strings.Builder
	list.Stderr = &complaint
	out, err := list.Output()
	if err != nil {
		return "", fmt.Errorf("list the agent's packages: %w\n%s", err, complaint.String())
	}
	digest := sha256.New()
	for _, path := range append(strings.Fields(string(out)), filepath.Join(root, "go.mod")) {
		text, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(digest, "%q %q\n", filepath.ToSlash(name), text)
	}
	return hex.EncodeToString(digest.Sum(nil))[:16], nil
}

// measurable returns what the benchmarks would measure in the working directory.
func measurable() (now bench.Now, err error) {
	if now.Source, err = agentSource("."); err != nil {
		return now, err
	}
	now.Versions = map[string]string{}
	for _, name := range []string{upstream.KubeProxy, upstream.KubeRouter} {
		version, err := upstream.Version(".", name)
		if err != nil {
			return now, err
		}
		now.Versions[name] = strings.TrimPrefix(version, "v")
	}
	return now, nil
}
