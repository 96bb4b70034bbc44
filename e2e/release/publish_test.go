package main

import (
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"sigs.k8s.io/yaml"
)

// TestPublish publishes a stub of a release to a local registry, with a stub of gh.
func TestPublish(t *testing.T) {
	b := stub(t, throwAway(t))
	for _, step := range []func() error{b.packClients, b.chart, b.notes, b.provenance, b.checksums} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	published(t, b)
}

// published publishes the release, and checks the result.
func published(t *testing.T, b *build) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	defer server.Close()
	p := publicationOf(b)
	host := strings.TrimPrefix(server.URL, "http://")
	p.image, p.charts = host+"/team/kube-ipvs", host+"/team/charts"
	env := map[string]string{"REGISTRY_USER": "user", "REGISTRY_PASSWORD": "password", "GH_TOKEN": "token"}
	p.env = func(name string) string { return env[name] }
	gh := standIn(t)
	if err := p.publish(false); err == nil {
		t.Fatal("a release without a tag is published")
	}
	tagged(t, p)
	if err := p.publish(true); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(gh); err == nil {
		t.Fatal("the dry run has created the release's page")
	}
	if err := p.publish(false); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(b.out)
	if err != nil {
		t.Fatal(err)
	}
	if words := strings.Fields(string(read(t, gh))); words[2] != testVersion || len(words) < 10+len(files) {
		t.Errorf("gh was run with %v", words)
	}
	pulled(t, b, p)
	cosign(t, b, p)
}

// standIn adds a stub of gh to PATH. The stub writes its arguments to the returned file.
func standIn(t *testing.T) string {
	dir := t.TempDir()
	file := filepath.Join(dir, "arguments")
	write(t, filepath.Join(dir, "gh"), "#!/bin/sh\necho \"$@\" >"+file+"\n")
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return file
}

// tagged turns the checkout into a Git repository with an annotated tag at testCommit. The repository is its own origin.
func tagged(t *testing.T, p publication) {
	t.Helper()
	git := func(args ...string) string {
		command := exec.Command("git", append([]string{"-C", p.checkout}, args...)...)
		for _, who := range []string{"AUTHOR", "COMMITTER"} {
			command.Env = append(command.Environ(), "GIT_"+who+"_NAME=test", "GIT_"+who+"_EMAIL=test@example.org", "GIT_"+who+"_DATE="+testEpoch+" +0000")
		}
		out, err := command.CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	git("init", "-q")
	git("remote", "add", "origin", p.checkout)
	git("commit", "-q", "--allow-empty", "-m", "test")
	git("commit", "-q", "--allow-empty", "-m", "another")
	git("tag", "-a", "-m", "test", p.version)
	if missing := p.untagged(); len(missing) != 1 || !strings.HasSuffix(missing[0], "it is at "+git("rev-parse", "HEAD")) {
		t.Errorf("a tag at another commit: %v", missing)
	}
	git("tag", "-f", "-a", "-m", "test", p.version, testCommit)
}

// pulled checks the pushed image and chart.
func pulled(t *testing.T, b *build, p publication) {
	ref, err := name.ParseReference(p.image + ":" + testVersion)
	if err != nil {
		t.Fatal(err)
	}
	index, err := remote.Index(ref)
	if err != nil {
		t.Fatal(err)
	}
	got, err := index.Digest()
	if want, err2 := layoutOf(t, b).Digest(); err != nil || err2 != nil || got != want {
		t.Errorf("image %v, %v, %v; want %v", got, err, err2, want)
	}
	for tag, layers := range map[string]int{"0.1.0-test": 2, "artifacthub.io": 1} {
		ref, err := name.ParseReference(p.charts + "/kube-ipvs:" + tag)
		if err != nil {
			t.Fatal(err)
		}
		chart, err := remote.Image(ref)
		if err != nil {
			t.Fatal(err)
		}
		if have, err := chart.Layers(); err != nil || len(have) != layers {
			t.Errorf("%s has %d layers, want %d (%v)", ref, len(have), layers, err)
		}
	}
}

// cosign verifies the image, its provenance and the files with the program cosign.
func cosign(t *testing.T, b *build, p publication) {
	program, err := filepath.Abs("../../.cache/tools/cosign")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(program); err != nil {
		if os.Getenv("KUBE_IPVS_E2E") == "1" {
			t.Fatal(err)
		}
		t.Log("NOT RUN: verification by cosign; make release-test builds it")
		return
	}
	key := []string{"--key", filepath.Join(b.checkout, publicCosign), "--insecure-ignore-tlog"}
	image := p.image + ":" + testVersion
	commands := [][]string{
		{"verify", image},
		{"verify-attestation", "--type", "slsaprovenance1", image},
		{"verify-blob", "--bundle", filepath.Join(b.out, "SHA256SUMS.sigstore.json"), filepath.Join(b.out, "SHA256SUMS")},
		{"verify-blob-attestation", "--type", "slsaprovenance1", "--bundle", b.file("-provenance.sigstore.json"), p.chart()},
	}
	for _, c := range commands {
		if out, err := exec.Command(program, append([]string{c[0]}, append(key, c[1:]...)...)...).CombinedOutput(); err != nil {
			t.Errorf("cosign %v: %v\n%s", c, err, out)
		}
	}
	key[1] = filepath.Join(t.TempDir(), "other.pub")
	write(t, key[1], cosignKeys(t))
	for _, c := range commands {
		if out, err := exec.Command(program, append([]string{c[0]}, append(key, c[1:]...)...)...).CombinedOutput(); err == nil {
			t.Errorf("cosign %v accepts another key\n%s", c, out)
		}
	}
}

func TestMissing(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	var got []string
	for _, s := range (publication{t.TempDir(), t.TempDir(), "v0.1.0", "v0.1.0" + notProven, "", "", func(string) string { return "" }}).steps() {
		for _, what := range s.missing {
			what, _, _ = strings.Cut(what, ", ")
			what, _, _ = strings.Cut(what, "; ")
			what, _, _ = strings.Cut(what, " (")
			got = append(got, s.name+": "+what)
		}
	}
	want := []string{
		"verify: the long tests", "verify: SHA256SUMS.minisig", "verify: kube-ipvs-0.1.0-not-proven.tgz.prov", "verify: SHA256SUMS.sigstore.json",
		"verify: kube-ipvs-v0.1.0-not-proven-image-signatures.tar", "verify: kube-ipvs-v0.1.0-not-proven-provenance.sigstore.json",
		"verify: " + publicMinisign, "verify: " + publicPGP, "verify: " + publicCosign, "tag: an answer of the git remote origin",
		"image: IMAGE", "image: REGISTRY_USER and REGISTRY_PASSWORD", "chart: CHARTS", "chart: REGISTRY_USER and REGISTRY_PASSWORD",
		"page: GH_TOKEN", "page: gh",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

// TestWorkflow checks that the workflow and the dry run have the same steps.
func TestWorkflow(t *testing.T) {
	var workflow struct {
		Jobs map[string]struct {
			Steps []struct{ Run string }
		}
	}
	if err := yaml.Unmarshal(read(t, checkout+"/.github/workflows/release.yml"), &workflow); err != nil {
		t.Fatal(err)
	}
	var targets []string
	for _, job := range []string{"build", "publish"} {
		for _, s := range workflow.Jobs[job].Steps {
			switch {
			case s.Run == "":
			case strings.HasPrefix(s.Run, "[["):
				checksTag(t, s.Run)
				targets = append(targets, "check the tag")
			default:
				targets = append(targets, strings.Join(strings.Fields(s.Run)[:2], " "))
			}
		}
	}
	if d := cmp.Diff([]string{"check the tag", "make release", "check the tag", "make release-publish"}, targets); d != "" || len(workflow.Jobs) != 2 {
		t.Error(d)
	}
	recipe := func(target string) string {
		out, err := exec.Command("make", "-n", "-C", checkout, "--no-print-directory", target, "VERSION=v0.1.0", "OUT=/out").Output()
		if err != nil {
			t.Fatalf("make -n %s: %v", target, err)
		}
		return string(out)
	}
	dry := recipe("release") + strings.Replace(recipe("release-publish"), " publish ", " publish -dry-run ", 1)
	if d := cmp.Diff(dry, recipe("release-dry-run")); d != "" {
		t.Errorf("make release-dry-run (-the workflow's targets +its own):\n%s", d)
	}
}

// checksTag runs the check of a tag. Its name becomes part of commands, and git allows quotes in it.
func checksTag(t *testing.T, check string) {
	t.Helper()
	for tag, want := range map[string]bool{
		"v0.1.0": true, "v0.10.2-rc.1": true, "v0.1": false, "v0.1.0'; id; '": false, "v0.1.0-$(id)": false, "v0.1.0\nx": false, "": false,
	} {
		cmd := exec.Command("bash", "-c", check)
		cmd.Env = []string{"GITHUB_REF_NAME=" + tag}
		if err := cmd.Run(); (err == nil) != want {
			t.Errorf("%q: %v", tag, err)
		}
	}
}
