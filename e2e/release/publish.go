package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// publication is a finished release and its destinations.
type publication struct {
	checkout, from string
	version, built string // the version to publish, and the version in the file names, which is different for a draft
	image, charts  string // repositories, without a tag
	env            func(string) string
}

// step is a step of publishing. It cannot run if something is missing.
type step struct {
	name, does string
	missing    []string
	do         func() error
	dry        bool // whether a dry run includes the step
}

func (p publication) steps() []step {
	charts := p.chartRepository()
	return []step{
		{"verify", "check the files and their signatures with the public keys in the checkout", p.unsigned(), p.verify, true},
		{"tag", "check that the tag is at the release's commit", p.untagged(), nil, true},
		{"image", "push the image's signatures and the image to " + cmp.Or(p.image, "IMAGE"), p.unset("IMAGE", p.image), func() error {
			if err := pushLayout(p.file("-image-signatures.tar"), p.image, p.login()); err != nil { // the image is never public without them
				return err
			}
			return pushLayout(p.file("-image.tar"), p.image, p.login())
		}, false},
		{"chart", "push the chart and Artifact Hub's metadata to " + charts, p.unset("CHARTS", p.charts), func() error {
			if err := pushChart(p.chart(), charts, p.login()); err != nil {
				return err
			}
			return pushMetadata(filepath.Join(p.checkout, "charts/artifacthub-repo.yml"), charts, p.login())
		}, false},
		{"page", "create the release's page on GitHub, with all files", p.noPage(), p.page, false},
	}
}

// publish runs all steps if nothing is missing. A dry run lists what is missing, and publishes nothing.
func (p publication) publish(dry bool) error {
	steps := p.steps()
	missing := 0
	for _, s := range steps {
		missing += len(s.missing)
		if dry || len(s.missing) > 0 {
			fmt.Printf("%-7s %s\n", s.name, s.does)
		}
		for _, what := range s.missing {
			fmt.Printf("        missing: %s\n", what)
		}
	}
	if !dry && missing > 0 {
		return fmt.Errorf("nothing is published, because %d things are missing", missing)
	}
	for _, s := range steps {
		if s.do == nil || len(s.missing) > 0 || dry && !s.dry {
			continue
		}
		if err := s.do(); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	fmt.Printf("\nAfterwards, by hand:\n%s", p.byHand())
	if dry {
		fmt.Printf("\nThis was a dry run. Nothing is published, and %d things are missing.\n", missing)
	}
	return nil
}

// byHand lists the steps that need a maintainer's own account.
func (p publication) byHand() string {
	if preRelease(p.version) {
		return "- Nothing: krew and Artifact Hub take releases only.\n"
	}
	return "- krew: in a fork of kubernetes-sigs/krew-index, copy kube-ipvs-" + p.version + "-krew.yaml to plugins/ipvs.yaml, and open a pull request.\n" +
		"- Artifact Hub, once: add the repository oci://" + p.chartRepository() + ", and put its ID into charts/artifacthub-repo.yml.\n"
}

func (p publication) file(suffix string) string {
	return filepath.Join(p.from, "kube-ipvs-"+p.built+suffix)
}

func (p publication) chart() string {
	return filepath.Join(p.from, "kube-ipvs-"+strings.TrimPrefix(p.built, "v")+".tgz")
}

func (p publication) chartRepository() string { return cmp.Or(p.charts, "CHARTS") + "/kube-ipvs" }

func (p publication) login() login {
	return login{p.env("REGISTRY_USER"), p.env("REGISTRY_PASSWORD")}
}

// unset lists the empty variables that a push needs.
func (p publication) unset(destination, value string) []string {
	var missing []string
	if value == "" {
		missing = append(missing, destination+", the repository to push to")
	}
	if p.login() == (login{}) {
		missing = append(missing, "REGISTRY_USER and REGISTRY_PASSWORD, a login at its registry")
	}
	return missing
}

// untagged returns what is wrong with the tag at origin. For an annotated tag, git ls-remote lists the commit last.
func (p publication) untagged() []string {
	command := exec.Command("git", "ls-remote", "origin", "refs/tags/"+p.version, "refs/tags/"+p.version+"^{}")
	command.Dir = p.checkout
	out, err := command.Output()
	if err != nil {
		return []string{fmt.Sprintf("an answer of the git remote origin (%v)", err)}
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	at, _, _ := strings.Cut(lines[len(lines)-1], "\t")
	commit, err := p.commit()
	switch {
	case err != nil:
		return []string{err.Error()}
	case at == "":
		return []string{fmt.Sprintf("the tag %s at origin; run git tag -s %s %s && git push origin %s", p.version, p.version, commit, p.version)}
	case at != commit:
		return []string{fmt.Sprintf("the tag %s at commit %s, from which the release was built; it is at %s", p.version, commit, at)}
	}
	return nil
}

// commit reads the release's commit from the provenance.
func (p publication) commit() (string, error) {
	text, err := os.ReadFile(p.file("-provenance.json"))
	if err != nil {
		return "", err
	}
	var s statement
	if err := json.Unmarshal(text, &s); err != nil {
		return "", err
	}
	return s.Predicate.BuildDefinition.ExternalParameters["commit"], nil
}

func (p publication) noPage() []string {
	var missing []string
	if p.env("GH_TOKEN") == "" {
		missing = append(missing, "GH_TOKEN, a token for the repository's contents")
	}
	if _, err := exec.LookPath("gh"); err != nil {
		missing = append(missing, "gh, GitHub's command")
	}
	return missing
}

func (p publication) page() error {
	files, err := filepath.Glob(filepath.Join(p.from, "*"))
	if err != nil {
		return err
	}
	args := []string{"release", "create", p.version, "--verify-tag", "--title", "kube-ipvs " + p.version, "--notes-file", p.file("-notes.md")}
	if preRelease(p.version) {
		args = append(args, "--prerelease")
	}
	gh := exec.Command("gh", append(args, files...)...)
	gh.Dir, gh.Stdout, gh.Stderr = p.checkout, os.Stdout, os.Stderr
	return gh.Run()
}

// These files in the checkout contain the public keys.
const (
	publicMinisign = "e2e/release/keys/minisign.pub"
	publicCosign   = "e2e/release/keys/cosign.pub"
	publicPGP      = "e2e/release/keys/openpgp.asc"
)

// unsigned lists missing signatures and public keys.
func (p publication) unsigned() []string {
	var missing []string
	if p.built != p.version {
		missing = append(missing, "the long tests; build without DRAFT=1")
	}
	for _, need := range []struct{ dir, name, remedy string }{
		{p.from, "SHA256SUMS.minisig", "build with RELEASE_MINISIGN_KEY"},
		{p.from, filepath.Base(p.chart()) + ".prov", "build with RELEASE_PGP_KEY"},
		{p.from, "SHA256SUMS.sigstore.json", "build with RELEASE_COSIGN_KEY"},
		{p.from, filepath.Base(p.file("-image-signatures.tar")), "build with RELEASE_COSIGN_KEY"},
		{p.from, filepath.Base(p.file("-provenance.sigstore.json")), "build with RELEASE_COSIGN_KEY"},
		{p.checkout, publicMinisign, "commit the public key"},
		{p.checkout, publicPGP, "commit the public key"},
		{p.checkout, publicCosign, "commit the public key"},
	} {
		if _, err := os.Stat(filepath.Join(need.dir, need.name)); errors.Is(err, fs.ErrNotExist) {
			missing = append(missing, need.name+"; "+need.remedy)
		}
	}
	return missing
}
