package main

import (
	"bytes"
	"debug/buildinfo"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"sigs.k8s.io/yaml"
)

// client is a platform that kubectl-ipvs is built for.
type client struct{ os, arch string }

var clients = []client{{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "amd64"}, {"darwin", "arm64"}, {"windows", "amd64"}}

func (c client) String() string { return c.os + "-" + c.arch }

func (c client) bin() string {
	if c.os == "windows" {
		return "kubectl-ipvs.exe"
	}
	return "kubectl-ipvs"
}

func (b *build) clientProgram(c client) string { return filepath.Join(b.work, c.String(), c.bin()) }

func (b *build) clientArchive(c client) string { return b.file("-kubectl-" + c.String() + ".tar.gz") }

// buildClients compiles kubectl-ipvs for each platform.
func (b *build) buildClients() error {
	for _, c := range clients {
		command := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -buildid= -X main.version="+b.version,
			"-o", b.clientProgram(c), "./cmd/kubectl-ipvs")
		command.Dir = b.checkout
		command.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off", "GOOS="+c.os, "GOARCH="+c.arch)
		if out, err := command.CombinedOutput(); err != nil {
			return fmt.Errorf("build kubectl-ipvs for %s: %w\n%s", c, err, bytes.TrimSpace(out))
		}
		info, err := buildinfo.ReadFile(b.clientProgram(c))
		if err != nil {
			return err
		}
		if err := b.materials.modules(info); err != nil {
			return err
		}
	}
	return nil
}

// packClients packs the programs with the license, and writes krew's manifest with their checksums.
func (b *build) packClients() error {
	manifest := krewManifest{APIVersion: "krew.googlecontainertools.github.com/v1alpha2", Kind: "Plugin"}
	manifest.Metadata.Name = "ipvs"
	manifest.Spec = krewSpec{
		Version: b.version, Homepage: "https://github.com/kube-ipvs/kube-ipvs",
		ShortDescription: "Query the kube-ipvs agents of a cluster",
		Description: "Runs kube-ipvs inspection commands in the agents' pods, merges the answers,\n" +
			"and lists the nodes that disagree and the nodes that did not respond.\n",
		Caveats: "The command requires permission to create pods/exec in the agents' namespace, which is equivalent to root on the nodes.\n",
	}
	for _, c := range clients {
		archive := tree{
			{name: "LICENSE", source: filepath.Join(b.checkout, "LICENSE"), mode: 0o644},
			{name: c.bin(), source: b.clientProgram(c), mode: 0o755},
		}
		if err := archive.compress(b.clientArchive(c), b.when); err != nil {
			return err
		}
		packed, err := sumOf(b.clientArchive(c))
		if err != nil {
			return err
		}
		p := krewPlatform{
			URI:    fmt.Sprintf("https://github.com/kube-ipvs/kube-ipvs/releases/download/%s/%s", b.version, packed.name),
			SHA256: packed.sum, Bin: c.bin(),
		}
		p.Selector.MatchLabels = map[string]string{"os": c.os, "arch": c.arch}
		manifest.Spec.Platforms = append(manifest.Spec.Platforms, p)
	}
	text, err := yaml.Marshal(manifest)
	if err != nil {
		return err
	}
	return os.WriteFile(b.file("-krew.yaml"), text, 0o644)
}

// krewManifest is a manifest for krew, the package manager for kubectl plugins.
type krewManifest struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec krewSpec `json:"spec"`
}

type krewSpec struct {
	Version          string         `json:"version"`
	Homepage         string         `json:"homepage"`
	ShortDescription string         `json:"shortDescription"`
	Description      string         `json:"description"`
	Caveats          string         `json:"caveats"`
	Platforms        []krewPlatform `json:"platforms"`
}

type krewPlatform struct {
	Selector struct {
		MatchLabels map[string]string `json:"matchLabels"`
	} `json:"selector"`
	URI    string `json:"uri"`
	SHA256 string `json:"sha256"`
	Bin    string `json:"bin"`
}
