package main

import (
	"bytes"
	"io"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// refName is the annotation that contains a manifest's tag in an OCI layout.
const refName = "org.opencontainers.image.ref.name"

// images writes the images of all supported platforms as a tar of an OCI layout.
func (b *build) images() error {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, p := range platforms {
		if !p.supported() {
			continue
		}
		files, debs, err := b.iptables(p)
		if err != nil {
			return err
		}
		if err := b.sbom(p, "kube-ipvs image", debs, b.file("-image-"+p.String()+".cdx.json")); err != nil {
			return err
		}
		img, err := b.imageOf(p, files)
		if err != nil {
			return err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: p.arch}},
		})
	}
	return b.writeImages(index)
}

func (b *build) writeImages(index v1.ImageIndex) error {
	b.index = index
	dir := filepath.Join(b.work, "layout")
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	if err := path.AppendIndex(index, layout.WithAnnotations(map[string]string{refName: b.version})); err != nil {
		return err
	}
	return b.packLayout(dir, "-image.tar")
}

// imageOf returns an image with two layers. The first layer changes only with Debian's packages, so an upgrade
// usually downloads only the second.
func (b *build) imageOf(p platform, iptables tree) (v1.Image, error) {
	agent := tree{
		{name: "usr/local/bin/kube-ipvs", source: b.program(p), mode: 0o755},
		{name: "usr/share/doc/kube-ipvs/copyright", source: filepath.Join(b.checkout, "LICENSE"), mode: 0o644},
	}
	img := emptyImage(types.OCIConfigJSON)
	for _, files := range []tree{iptables, agent} {
		layer, err := layerOf(files, b.when)
		if err != nil {
			return nil, err
		}
		if img, err = mutate.AppendLayers(img, layer); err != nil {
			return nil, err
		}
	}
	start, err := b.recipe.Start()
	if err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created = "linux", p.arch, v1.Time{Time: b.when}
	config.Config = v1.Config{
		Entrypoint: start.Entrypoint, Cmd: start.Arguments, Env: start.Environment, Labels: b.recipe.Labels(b.version, b.commit),
	}
	return mutate.ConfigFile(img, config)
}

// emptyImage returns an OCI image without layers, whose configuration has this type.
func emptyImage(config types.MediaType) v1.Image {
	return mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), config)
}

func layerOf(files tree, when time.Time) (v1.Layer, error) {
	var content bytes.Buffer
	if err := files.write(&content, when); err != nil {
		return nil, err
	}
	opener := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content.Bytes())), nil }
	return tarball.LayerFromOpener(opener, tarball.WithMediaType(types.OCILayer))
}
