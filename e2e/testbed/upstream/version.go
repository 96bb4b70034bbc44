package upstream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// versionVariable is the environment variable that selects a version of Kubernetes, such as 1.34.4, instead of the pinned version.
const versionVariable = "KUBE_IPVS_KUBERNETES"

const kubernetesModule = "k8s.io/kubernetes"

// otherVersion returns the version in versionVariable for a release of Kubernetes. It returns an empty string for other releases, and if the variable
// selects the pinned version.
func (r release) otherVersion(root string) string {
	version := strings.TrimPrefix(os.Getenv(versionVariable), "v")
	if r.module != kubernetesModule || version == "" {
		return ""
	}
	// If the file cannot be read, the caller's next step reports the error.
	if goMod, _ := os.ReadFile(filepath.Join(r.pinned(root), "go.mod")); r.required(goMod) == "v"+version {
		return ""
	}
	return version
}

// Source returns the directory with the source of the release that contains a program.
func Source(ctx context.Context, root, program string) (string, error) {
	r, _, err := find(root, program)
	if err != nil {
		return "", err
	}
	list := r.command(ctx, root, []string{"list", "-mod=readonly", "-m", "-f", "{{.Dir}}", r.module})
	list.Stderr = os.Stderr
	dir, err := list.Output()
	if err != nil {
		return "", fmt.Errorf("find the source of %s: %w", program, err)
	}
	return strings.TrimSpace(string(dir)), nil
}

// makeSource creates the Go module for the version in versionVariable if it does not exist.
func (r release) makeSource(ctx context.Context, root string) error {
	version := r.otherVersion(root)
	source := r.source(root)
	if _, err := os.Stat(filepath.Join(source, "go.sum")); version == "" || err == nil {
		return nil
	}
	module, err := Download(ctx, kubernetesModule+"@v"+version)
	if err != nil {
		return err
	}
	theirs, err := os.ReadFile(module.GoMod)
	if err != nil {
		return err
	}
	if err := errors.Join(os.RemoveAll(source), os.CopyFS(source, os.DirFS(r.pinned(root))), os.Remove(filepath.Join(source, "go.sum"))); err != nil {
		return fmt.Errorf("create the module of Kubernetes %s: %w", version, err)
	}
	ours, err := os.ReadFile(filepath.Join(source, "go.mod"))
	if err == nil {
		err = os.WriteFile(filepath.Join(source, "go.mod"), []byte(modFile(string(ours), string(theirs), version)), 0o644)
	}
	if err != nil {
		return fmt.Errorf("create the module of Kubernetes %s: %w", version, err)
	}
	// Tests of Kubernetes import modules that may not be available, such as k8s.io/sample-apiserver. -e ignores them. A build reports every
	// missing module that a program needs.
	tidy := r.command(ctx, root, []string{"mod", "tidy", "-e"})
	tidy.Stderr = os.Stderr
	if err := tidy.Run(); err != nil {
		return fmt.Errorf("find the modules of Kubernetes %s (in %s): %w", version, source, err)
	}
	return nil
}

// Module is a downloaded Go module.
type Module struct{ Dir, GoMod string }

// Download downloads a module, such as k8s.io/kubernetes@v1.34.4.
func Download(ctx context.Context, module string) (Module, error) {
	out, err := exec.CommandContext(ctx, "go", "mod", "download", "-json", module).Output()
	var answer struct {
		Module
		Error string
	}
	if wrong := json.Unmarshal(out, &answer); wrong != nil || answer.Error != "" {
		return Module{}, fmt.Errorf("download %s: %w", module, errors.Join(err, wrong, errors.New(answer.Error)))
	}
	return answer.Module, err
}

var (
	staging = regexp.MustCompile(`(?m)^\s*(k8s\.io/\S+) => \./staging/`)
	blocks  = regexp.MustCompile(`(?ms)^(require|replace) \(.*?^\)\n`)
)

// modFile converts the pinned go.mod to another version of Kubernetes. The result requires only Kubernetes, so that go mod tidy selects the
// dependencies of that version. It replaces the modules in Kubernetes' own repository with their published versions.
func modFile(pinned, kubernetes, version string) string {
	text := blocks.ReplaceAllString(pinned, "")
	text += fmt.Sprintf("\nrequire %s v%s\n\nreplace (\n", kubernetesModule, version)
	for _, match := range staging.FindAllStringSubmatch(kubernetes, -1) {
		text += fmt.Sprintf("\t%s => %s v0%s\n", match[1], match[1], strings.TrimPrefix(version, "1"))
	}
	return text + ")\n"
}
