package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"helm.sh/helm/v4/pkg/registry"
)

// login is a user name and password for a registry.
type login struct{ user, password string }

func (l login) option() remote.Option {
	return remote.WithAuth(&authn.Basic{Username: l.user, Password: l.password})
}

// pushLayout pushes the images and indexes of a packed OCI layout. Their annotations contain the tags.
func pushLayout(file, repository string, who login) error {
	dir, err := os.MkdirTemp("", "kube-ipvs-release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	all, err := unpackLayout(file, dir)
	if err != nil {
		return err
	}
	manifest, err := all.IndexManifest()
	if err != nil {
		return err
	}
	for _, m := range manifest.Manifests {
		if err := pushOne(all, m, repository, who); err != nil {
			return fmt.Errorf("%s: %w", m.Annotations[refName], err)
		}
	}
	return nil
}

func unpackLayout(file, dir string) (v1.ImageIndex, error) {
	if out, err := exec.Command("tar", "-xf", file, "-C", dir).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("tar: %w\n%s", err, out)
	}
	return layout.ImageIndexFromPath(dir)
}

func pushOne(all v1.ImageIndex, m v1.Descriptor, repository string, who login) error {
	ref, err := name.ParseReference(repository+":"+m.Annotations[refName], name.StrictValidation)
	if err != nil {
		return err
	}
	fmt.Printf("%s@%s\n", ref, m.Digest)
	if m.MediaType.IsIndex() {
		index, err := all.ImageIndex(m.Digest)
		if err != nil {
			return err
		}
		return remote.WriteIndex(ref, index, who.option())
	}
	img, err := all.Image(m.Digest)
	if err != nil {
		return err
	}
	return remote.Write(ref, img, who.option())
}

// pushChart pushes the chart with its provenance.
func pushChart(file, repository string, who login) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	provenance, err := os.ReadFile(file + ".prov")
	if err != nil {
		return err
	}
	client := []registry.ClientOption{registry.ClientOptBasicAuth(who.user, who.password), registry.ClientOptWriter(os.Stdout)}
	if strings.HasPrefix(repository, "127.0.0.1:") { // the registry of a test
		client = append(client, registry.ClientOptPlainHTTP())
	}
	helm, err := registry.NewClient(client...)
	if err != nil {
		return err
	}
	version := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(file), "kube-ipvs-"), ".tgz")
	_, err = helm.Push(content, repository+":"+version, registry.PushOptProvData(provenance))
	return err
}

// pushMetadata pushes the file that tells Artifact Hub who owns the chart's repository.
func pushMetadata(file, repository string, who login) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	base := emptyImage("application/vnd.cncf.artifacthub.config.v1+yaml")
	img, err := mutate.AppendLayers(base, static.NewLayer(content, "application/vnd.cncf.artifacthub.repository-metadata.layer.v1.yaml"))
	if err != nil {
		return err
	}
	ref, err := name.ParseReference(repository+":artifacthub.io", name.StrictValidation)
	if err != nil {
		return err
	}
	return remote.Write(ref, img, who.option())
}
