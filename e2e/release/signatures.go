package main

import (
	"encoding/base64"
	"encoding/json"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/secure-systems-lab/go-securesystemslib/dsse"
)

const cosignSignature = "dev.cosignproject.cosign/signature"

// simpleSigning is the JSON object that cosign signs for an image.
type simpleSigning struct {
	Critical struct {
		Identity struct {
			Reference string `json:"docker-reference"`
		} `json:"identity"`
		Image struct {
			Digest string `json:"docker-manifest-digest"`
		} `json:"image"`
		Type string `json:"type"`
	} `json:"critical"`
	Optional map[string]string `json:"optional"`
}

// imageDigests returns the digests of the index and of each platform's image.
func (b *build) imageDigests() ([]v1.Hash, error) {
	digest, err := b.index.Digest()
	if err != nil {
		return nil, err
	}
	manifest, err := b.index.IndexManifest()
	if err != nil {
		return nil, err
	}
	all := []v1.Hash{digest}
	for _, m := range manifest.Manifests {
		all = append(all, m.Digest)
	}
	return all, nil
}

func (b *build) imageName() string {
	if b.image == "" {
		return "kube-ipvs/kube-ipvs"
	}
	return b.image
}

// signImages writes the images' signatures and provenance to a tar file with an OCI layout. In the image's repository, cosign looks for them under
// the tags sha256-DIGEST.sig and sha256-DIGEST.att.
func (b *build) signImages(provenance *dsse.Envelope) error {
	attestation, err := json.Marshal(provenance)
	if err != nil {
		return err
	}
	digests, err := b.imageDigests()
	if err != nil {
		return err
	}
	dir := filepath.Join(b.work, "signatures")
	path, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	for _, digest := range digests {
		var payload simpleSigning
		payload.Critical.Identity.Reference, payload.Critical.Image.Digest = b.imageName(), digest.String()
		payload.Critical.Type = "cosign container image signature"
		text, err := json.Marshal(payload)
		if err != nil {
			return err
		}
		signature, err := b.keys.cosign.sign(text)
		if err != nil {
			return err
		}
		tag := "sha256-" + digest.Hex
		annotations := map[string]string{cosignSignature: base64.StdEncoding.EncodeToString(signature)}
		if err := attach(path, tag+".sig", text, "application/vnd.dev.cosign.simplesigning.v1+json", annotations); err != nil {
			return err
		}
		annotations = map[string]string{cosignSignature: "", "predicateType": predicateType} // the envelope contains the signature
		if err := attach(path, tag+".att", attestation, "application/vnd.dsse.envelope.v1+json", annotations); err != nil {
			return err
		}
	}
	return b.packLayout(dir, "-image-signatures.tar")
}

// attach adds an image with one layer to the OCI layout. cosign reads the layer and its annotations.
func attach(path layout.Path, tag string, content []byte, media types.MediaType, annotations map[string]string) error {
	img, err := mutate.Append(emptyImage(types.OCIConfigJSON), mutate.Addendum{Layer: static.NewLayer(content, media), Annotations: annotations})
	if err != nil {
		return err
	}
	return path.AppendImage(img, layout.WithAnnotations(map[string]string{refName: tag}))
}

func (b *build) packLayout(dir, suffix string) error {
	files, err := treeOf(dir)
	if err != nil {
		return err
	}
	out, err := os.Create(b.file(suffix))
	if err != nil {
		return err
	}
	defer out.Close()
	if err := files.write(out, b.when); err != nil {
		return err
	}
	return out.Close()
}
