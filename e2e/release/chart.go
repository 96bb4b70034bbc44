package main

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/ProtonMail/go-crypto/openpgp"
	"helm.sh/helm/v4/pkg/chart/common"
	chartv2 "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/chart/v2/util"
	"sigs.k8s.io/yaml"
)

func chartDir(checkout string) string { return filepath.Join(checkout, "charts/kube-ipvs") }

func chartVersion(checkout string) (string, error) {
	c, err := loader.LoadDir(chartDir(checkout))
	if err != nil {
		return "", err
	}
	return c.Metadata.Version, nil
}

// chart packages the chart, with its provenance if there is a key.
func (b *build) chart() error {
	c, err := loader.LoadDir(chartDir(b.checkout))
	if err != nil {
		return err
	}
	if err := b.release(c); err != nil {
		return err
	}
	file, err := util.Save(c, b.out)
	if err != nil || b.keys.pgp == nil {
		return err
	}
	metadata, err := yaml.Marshal(c.Metadata)
	if err != nil {
		return err
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	signed, err := b.keys.pgp.ClearSign(content, filepath.Base(file), metadata)
	if err != nil {
		return err
	}
	return os.WriteFile(file+".prov", []byte(signed), 0o644)
}

// release sets the chart's version, image, changes and time.
func (b *build) release(c *chartv2.Chart) error {
	c.Metadata.Version, c.Metadata.AppVersion = strings.TrimPrefix(b.version, "v"), b.version
	if err := b.annotate(c.Metadata); err != nil {
		return err
	}
	c.ModTime, c.SchemaModTime = b.when, b.when
	for _, files := range [][]*common.File{c.Raw, c.Templates, c.Files} {
		for _, f := range files {
			f.ModTime = b.when
		}
	}
	if b.image == "" {
		return nil
	}
	registry, repository, ok := strings.Cut(b.image, "/")
	if !ok {
		return fmt.Errorf("image %q: use REGISTRY/REPOSITORY", b.image)
	}
	for _, f := range c.Raw {
		if f.Name != util.ValuesfileName {
			continue
		}
		for _, replace := range [][2]string{
			{"\n  registry: \"\"\n", "\n  registry: " + registry + "\n"},
			{"\n  repository: kube-ipvs/kube-ipvs\n", "\n  repository: " + repository + "\n"},
		} {
			if n := strings.Count(string(f.Data), replace[0]); n != 1 {
				return fmt.Errorf("values.yaml has %d lines %q; expected one", n, strings.TrimSpace(replace[0]))
			}
			f.Data = []byte(strings.Replace(string(f.Data), replace[0], replace[1], 1))
		}
	}
	return nil
}

// annotate adds annotations for Artifact Hub.
func (b *build) annotate(m *chartv2.Metadata) error {
	type item struct {
		Kind        string `json:"kind"`
		Description string `json:"description"`
	}
	var changes []item
	for _, c := range b.changes.items {
		changes = append(changes, item{c.kind, c.text})
	}
	text, err := yaml.Marshal(changes)
	if err != nil {
		return err
	}
	if m.Annotations == nil {
		m.Annotations = map[string]string{}
	}
	m.Annotations["artifacthub.io/changes"] = string(text)
	m.Annotations["artifacthub.io/prerelease"] = fmt.Sprint(preRelease(b.version))
	key, err := publicPGPKey(b.checkout)
	if err != nil {
		return err
	}
	if key != nil {
		m.Annotations["artifacthub.io/signKey"] = fmt.Sprintf("fingerprint: %X\nurl: https://raw.githubusercontent.com/kube-ipvs/kube-ipvs/%s/%s\n",
			key[0].PrimaryKey.Fingerprint, b.version, publicPGP)
	}
	if b.image != "" {
		m.Annotations["artifacthub.io/images"] = fmt.Sprintf("- name: kube-ipvs\n  image: %s:%s\n", b.image, b.version)
	}
	return nil
}

// publicPGPKey returns the public OpenPGP key in the checkout, or nil. The chart's annotation uses this key, so that a build without the secret key
// makes the same chart.
func publicPGPKey(checkout string) (openpgp.EntityList, error) {
	text, err := os.ReadFile(filepath.Join(checkout, publicPGP))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	ring, err := openpgp.ReadArmoredKeyRing(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", publicPGP, err)
	}
	return ring, nil
}

// manifests packs the rendered chart for users without Helm.
func (b *build) manifests() error {
	chart, err := chartVersion(b.checkout)
	if err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(b.checkout, "charts/manifests/*.yaml"))
	if err != nil {
		return err
	}
	var archive tree
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		released := strings.NewReplacer(`"kube-ipvs/kube-ipvs:v`+chart+`"`, `"`+b.imageName()+":"+b.version+`"`, `"v`+chart+`"`, `"`+b.version+`"`).Replace(string(text))
		source := filepath.Join(b.work, filepath.Base(file))
		if err := os.WriteFile(source, []byte(released), 0o644); err != nil {
			return err
		}
		archive = append(archive, entry{name: "manifests/" + filepath.Base(file), source: source, mode: 0o644})
	}
	return archive.compress(b.file("-manifests.tar.gz"), b.when)
}
