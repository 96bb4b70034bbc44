package main

import (
	"debug/buildinfo"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
)

// statement is an in-toto statement (https://in-toto.io/Statement/v1) with SLSA provenance
// (https://slsa.dev/provenance/v1).
type statement struct {
	Type          string     `json:"_type"`
	Subject       []resource `json:"subject"`
	PredicateType string     `json:"predicateType"`
	Predicate     struct {
		BuildDefinition buildDefinition `json:"buildDefinition"`
		RunDetails      runDetails      `json:"runDetails"`
	} `json:"predicate"`
}

type resource struct {
	Name   string            `json:"name,omitempty"`
	URI    string            `json:"uri,omitempty"`
	Digest map[string]string `json:"digest,omitempty"`
}

type buildDefinition struct {
	BuildType            string            `json:"buildType"`
	ExternalParameters   map[string]string `json:"externalParameters"`
	ResolvedDependencies []resource        `json:"resolvedDependencies"`
}

type runDetails struct {
	Builder struct {
		ID string `json:"id"`
	} `json:"builder"`
	Metadata struct {
		InvocationID string `json:"invocationId,omitempty"`
	} `json:"metadata"`
}

const (
	project       = "https://github.com/kube-ipvs/kube-ipvs"
	predicateType = "https://slsa.dev/provenance/v1"
)

// materials are the modules, the Go release and the Debian packages in a release. The keys are their URIs.
type materials map[string]resource

func (m materials) add(uri string, digest map[string]string) {
	m[uri] = resource{URI: uri, Digest: digest}
}

// modules adds the modules in a program. The dirHash of in-toto is Go's module checksum in hexadecimal.
func (m materials) modules(info *buildinfo.BuildInfo) error {
	m.add(golang("std", strings.TrimPrefix(info.GoVersion, "go")), nil)
	for _, module := range info.Deps {
		used := replaced(module)
		sum, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(used.Sum, "h1:"))
		if err != nil {
			return fmt.Errorf("checksum of %s: %w", used.Path, err)
		}
		m.add(golang(used.Path, used.Version), map[string]string{"dirHash": fmt.Sprintf("%x", sum)})
	}
	return nil
}

// provenance writes a description of how the files and the image were built. If the cosign key is set, it signs that description and the images.
func (b *build) provenance() error {
	s := statement{Type: "https://in-toto.io/Statement/v1", PredicateType: predicateType}
	var err error
	if s.Subject, err = b.subjects(); err != nil {
		return err
	}
	commit := strings.TrimSuffix(b.commit, "-dirty")
	source := resource{URI: "git+" + project + "@refs/tags/" + b.version, Digest: map[string]string{"gitCommit": commit}}
	s.Predicate.BuildDefinition = buildDefinition{
		BuildType:          project + "/blob/main/docs/release.md#provenance",
		ExternalParameters: map[string]string{"version": b.version, "image": b.image, "commit": b.commit},
		ResolvedDependencies: append([]resource{source},
			slices.SortedFunc(maps.Values(b.materials), func(a, b resource) int { return strings.Compare(a.URI, b.URI) })...),
	}
	s.Predicate.RunDetails = builder(os.Getenv)
	text, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(b.file("-provenance.json"), append(text, '\n'), 0o644); err != nil || b.keys.cosign == nil {
		return err
	}
	envelope, err := b.keys.cosign.envelope(text)
	if err != nil {
		return err
	}
	if err := b.keys.cosign.writeBundle(b.file("-provenance.sigstore.json"), bundle{Envelope: envelope}); err != nil {
		return err
	}
	return b.signImages(envelope)
}

// builder identifies the workflow run. Outside a workflow, it names the page that describes the build.
func builder(env func(string) string) runDetails {
	var r runDetails
	r.Builder.ID = project + "/blob/main/docs/release.md#make-a-release"
	if workflow := env("GITHUB_WORKFLOW_REF"); workflow != "" {
		server := env("GITHUB_SERVER_URL")
		r.Builder.ID = server + "/" + workflow
		r.Metadata.InvocationID = fmt.Sprintf("%s/%s/actions/runs/%s/attempts/%s", server, env("GITHUB_REPOSITORY"), env("GITHUB_RUN_ID"), env("GITHUB_RUN_ATTEMPT"))
	}
	return r
}

// subjects lists the files built so far, and the images.
func (b *build) subjects() ([]resource, error) {
	files, err := b.sums()
	if err != nil {
		return nil, err
	}
	var all []resource
	for _, f := range files {
		all = append(all, resource{Name: f.name, Digest: map[string]string{"sha256": f.sum}})
	}
	images, err := b.imageDigests()
	for _, digest := range images {
		all = append(all, resource{Name: b.imageName(), Digest: map[string]string{"sha256": digest.Hex}})
	}
	return all, err
}
