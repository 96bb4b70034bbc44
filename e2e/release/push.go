package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"helm.sh/helm/v4/pkg/registry"
)

// credentials are for the registry. Without a user, requests are anonymous.
type credentials struct{ user, password string }

func (c credentials) authenticator() authn.Authenticator {
	if c.user == "" {
		return authn.Anonymous
	}
	return &authn.Basic{Username: c.user, Password: c.password}
}

func push(from, version, repository, charts string, who credentials) error {
	if from == "" || version == "" || repository == "" || charts == "" {
		return errors.New("push needs -from, -version, -image and -charts")
	}
	digest, err := pushImage(filepath.Join(from, "kube-ipvs-"+version+"-image.tar"), repository+":"+version, who)
	if err != nil {
		return fmt.Errorf("image: %w", err)
	}
	fmt.Printf("%s:%s@%s\n", repository, version, digest)
	chart := filepath.Join(from, "kube-ipvs-"+strings.TrimPrefix(version, "v")+".tgz")
	if err := pushChart(chart, charts+"/kube-ipvs:"+strings.TrimPrefix(version, "v"), who); err != nil {
		return fmt.Errorf("chart: %w", err)
	}
	return nil
}

func pushImage(file, reference string, who credentials) (v1.Hash, error) {
	ref, err := name.ParseReference(reference, name.StrictValidation)
	if err != nil {
		return v1.Hash{}, err
	}
	dir, err := os.MkdirTemp("", "kube-ipvs-release-")
	if err != nil {
		return v1.Hash{}, err
	}
	defer os.RemoveAll(dir)
	if out, err := exec.Command("tar", "-xf", file, "-C", dir).CombinedOutput(); err != nil {
		return v1.Hash{}, fmt.Errorf("tar: %w\n%s", err, out)
	}
	index, err := indexOf(dir)
	if err != nil {
		return v1.Hash{}, err
	}
	if err := remote.WriteIndex(ref, index, remote.WithAuth(who.authenticator())); err != nil {
		return v1.Hash{}, err
	}
	return index.Digest()
}

// indexOf returns the only image index in an OCI layout.
func indexOf(dir string) (v1.ImageIndex, error) {
	all, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return nil, err
	}
	manifest, err := all.IndexManifest()
	if err != nil {
		return nil, err
	}
	if len(manifest.Manifests) != 1 {
		return nil, fmt.Errorf("the layout has %d indexes; expected one", len(manifest.Manifests))
	}
	return all.ImageIndex(manifest.Manifests[0].Digest)
}

func pushChart(file, reference string, who credentials) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var options []registry.PushOption
	if provenance, err := os.ReadFile(file + ".prov"); err == nil {
		options = append(options, registry.PushOptProvData(provenance))
	}
	client := []registry.ClientOption{registry.ClientOptBasicAuth(who.user, who.password), registry.ClientOptWriter(os.Stdout)}
	if strings.HasPrefix(reference, "127.0.0.1:") { // the registry of a test
		client = append(client, registry.ClientOptPlainHTTP())
	}
	helm, err := registry.NewClient(client...)
	if err != nil {
		return err
	}
	_, err = helm.Push(content, reference, options...)
	return err
}
