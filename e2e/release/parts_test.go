package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"aead.dev/minisign"
	"github.com/google/go-cmp/cmp"
	"github.com/sassoftware/go-rpmutils"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"sigs.k8s.io/yaml"
)

// TestParts builds every part of a release that needs neither a compiler nor Debian's packages.
func TestParts(t *testing.T) {
	b := stub(t, throwAway(t))
	for _, step := range []func() error{b.packPrograms, b.packages, b.packClients, b.chart, b.manifests, b.notes, b.provenance, b.checksums} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	t.Run("signatures", func(t *testing.T) { signatures(t, b) })
	t.Run("provenance", func(t *testing.T) { provenanceOf(t, b) })
	t.Run("programs", func(t *testing.T) { packed(t, b) })
	t.Run("chart", func(t *testing.T) { chart(t, b) })
	t.Run("manifests", func(t *testing.T) { manifests(t, b) })
	t.Run("deb", func(t *testing.T) { debFile(t, b) })
	t.Run("rpm", func(t *testing.T) { rpmFile(t, b) })
	t.Run("notes", func(t *testing.T) {
		text := string(read(t, b.file("-notes.md")))
		if !strings.Contains(text, testImage+":"+testVersion) || !strings.Contains(text, "/blob/"+testVersion+"/docs/known-limits.md") {
			t.Errorf("the notes do not name the image, or contain a relative link:\n%s", text)
		}
	})
	t.Run("krew", func(t *testing.T) { krew(t, b) })
	t.Run("same bytes", func(t *testing.T) { sameParts(t, b) })
}

// packed checks that the archive of each platform contains its program, and that SHA256SUMS lists the archive.
func packed(t *testing.T, b *build) {
	sums := string(read(t, filepath.Join(b.out, "SHA256SUMS")))
	for _, p := range platforms {
		if !bytes.Equal(unpacked(t, b, p), read(t, b.program(p))) {
			t.Errorf("the archive for %s does not contain its program", p.system())
		}
		if !strings.Contains(sums, "  kube-ipvs-"+testVersion+"-"+p.system()+".") {
			t.Errorf("SHA256SUMS does not list the archive for %s", p.system())
		}
	}
}

// sameParts rebuilds the parts from a copy of the sources. The rebuilt parts are unsigned, because no two
// signatures are equal.
func sameParts(t *testing.T, first *build) {
	t.Setenv("RELEASE_MINISIGN_KEY", "")
	t.Setenv("RELEASE_COSIGN_KEY", "")
	t.Setenv("RELEASE_PGP_KEY", "")
	second := stub(t, copied(t, first.checkout))
	for _, step := range []func() error{second.packPrograms, second.packages, second.packClients, second.chart, second.manifests, second.notes} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := os.ReadDir(second.out)
	if err != nil || len(entries) < 7 {
		t.Fatalf("%v, %d files", err, len(entries))
	}
	for _, e := range entries {
		if !bytes.Equal(read(t, filepath.Join(first.out, e.Name())), read(t, filepath.Join(second.out, e.Name()))) {
			t.Errorf("%s differs between two builds of the same sources", e.Name())
		}
	}
}

// signatures checks that verify accepts the release, and rejects a changed file or another key.
func signatures(t *testing.T, b *build) {
	p := publicationOf(b)
	if err := p.verify(); err != nil {
		t.Fatal(err)
	}
	check := exec.Command("sha256sum", "--check", "--strict", "SHA256SUMS")
	check.Dir = b.out
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	for _, file := range []string{filepath.Join(b.out, "SHA256SUMS"), p.file("-notes.md"), p.file("-provenance.json"), p.chart()} {
		content := read(t, file)
		write(t, file, string(content)+"\n")
		if err := p.verify(); err == nil {
			t.Errorf("%s is changed, and verify reports no error", file)
		}
		write(t, file, string(content))
	}
	for _, name := range []string{publicMinisign, publicCosign, publicPGP} {
		other := throwAway(t)
		changed := p
		changed.checkout = copied(t, b.checkout)
		write(t, filepath.Join(changed.checkout, name), string(read(t, filepath.Join(other, name))))
		if err := changed.verify(); err == nil {
			t.Errorf("%s is another key, and verify reports no error", name)
		}
	}
	openssl(t, b)
}

// openssl verifies the signature of SHA256SUMS with the program openssl.
func openssl(t *testing.T, b *build) {
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Log("NOT RUN: install openssl to verify a signature with it")
		return
	}
	made, err := readBundle(filepath.Join(b.out, "SHA256SUMS.sigstore.json"))
	if err != nil {
		t.Fatal(err)
	}
	signature := filepath.Join(t.TempDir(), "signature")
	write(t, signature, string(made.MessageSignature.Signature))
	verify := exec.Command("openssl", "dgst", "-sha256", "-verify", filepath.Join(b.checkout, publicCosign), "-signature", signature, filepath.Join(b.out, "SHA256SUMS"))
	if out, err := verify.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func publicationOf(b *build) publication {
	return publication{b.checkout, b.out, testVersion, testVersion, testImage, "registry.example/team/charts", func(string) string { return "" }}
}

// provenanceOf checks that the provenance lists the source, and each file with its checksum.
func provenanceOf(t *testing.T, b *build) {
	var s statement
	if err := json.Unmarshal(read(t, b.file("-provenance.json")), &s); err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, subject := range s.Subject {
		files[subject.Name] = subject.Digest["sha256"]
	}
	for line := range strings.Lines(string(read(t, filepath.Join(b.out, "SHA256SUMS")))) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		about := strings.Contains(name, "-provenance.") || strings.Contains(name, "-image-signatures.")
		if files[name] != sum && !about {
			t.Errorf("the provenance lists %s with the checksum %q; want %s", name, files[name], sum)
		}
	}
	if files[testImage] == "" {
		t.Error("the provenance does not list the image")
	}
	source := s.Predicate.BuildDefinition.ResolvedDependencies[0]
	if source.Digest["gitCommit"] != testCommit || !strings.HasSuffix(source.URI, "@refs/tags/"+testVersion) {
		t.Errorf("source %+v", source)
	}
	if got := s.Predicate.RunDetails.Builder.ID; got != project+"/blob/main/docs/release.md#make-a-release" {
		t.Errorf("builder %q", got)
	}
}

func TestBuilder(t *testing.T) {
	env := map[string]string{
		"GITHUB_SERVER_URL": "https://example.org", "GITHUB_REPOSITORY": "a/b", "GITHUB_RUN_ID": "7", "GITHUB_RUN_ATTEMPT": "2",
		"GITHUB_WORKFLOW_REF": "a/b/.github/workflows/release.yml@refs/tags/v1.0.0",
	}
	got := builder(func(name string) string { return env[name] })
	if got.Builder.ID != "https://example.org/a/b/.github/workflows/release.yml@refs/tags/v1.0.0" ||
		got.Metadata.InvocationID != "https://example.org/a/b/actions/runs/7/attempts/2" {
		t.Errorf("%+v", got)
	}
}

// krew checks that the manifest contains the checksum of each archive, and that each archive contains the named
// program.
func krew(t *testing.T, b *build) {
	var manifest krewManifest
	if err := yaml.UnmarshalStrict(read(t, b.file("-krew.yaml")), &manifest); err != nil {
		t.Fatal(err)
	}
	if manifest.Metadata.Name != "ipvs" || manifest.Spec.Version != testVersion || len(manifest.Spec.Platforms) != len(clients) {
		t.Errorf("manifest %+v", manifest)
	}
	for _, p := range manifest.Spec.Platforms {
		archive := filepath.Join(b.out, filepath.Base(p.URI))
		if sum := fmt.Sprintf("%x", sha256.Sum256(read(t, archive))); sum != p.SHA256 {
			t.Errorf("%s: checksum %s, want %s", p.URI, p.SHA256, sum)
		}
		if out, err := exec.Command("tar", "-tf", archive).Output(); err != nil || string(out) != "LICENSE\n"+p.Bin+"\n" {
			t.Errorf("%s contains the files %q (%v)", archive, out, err)
		}
	}
}

func chart(t *testing.T, b *build) {
	file := filepath.Join(b.out, "kube-ipvs-0.1.0-test.tgz")
	c, err := loader.LoadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if c.Metadata.Version != "0.1.0-test" || c.Metadata.AppVersion != testVersion {
		t.Errorf("the chart has version %s and agent version %s", c.Metadata.Version, c.Metadata.AppVersion)
	}
	values, _ := c.Values["image"].(map[string]any)
	if values["registry"] != "registry.example" || values["repository"] != "team/kube-ipvs" {
		t.Errorf("image %v", values)
	}
	for name, want := range map[string]string{"images": testImage + ":" + testVersion, "prerelease": "true", "changes": "kind: added", "license": "Apache-2.0",
		"signKey": fmt.Sprintf("fingerprint: %X\nurl: https://raw.githubusercontent.com/kube-ipvs/kube-ipvs/%s/%s\n", b.keys.pgp.Entity.PrimaryKey.Fingerprint, testVersion, publicPGP)} {
		if got := c.Metadata.Annotations["artifacthub.io/"+name]; !strings.Contains(got, want) {
			t.Errorf("annotation %s: %q; want %q", name, got, want)
		}
	}
}

func manifests(t *testing.T, b *build) {
	dir := t.TempDir()
	if out, err := exec.Command("tar", "-xf", b.file("-manifests.tar.gz"), "-C", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	files, err := filepath.Glob(filepath.Join(dir, "manifests/*.yaml"))
	if err != nil || len(files) < 4 {
		t.Fatalf("%v: %v", err, files)
	}
	for _, file := range files {
		text := string(read(t, file))
		if strings.Count(text, `image: "`+testImage+":"+testVersion+`"`) != 1 || strings.Count(text, `version: "`+testVersion+`"`) < 4 {
			t.Errorf("%s lacks the release's image or version", filepath.Base(file))
		}
		if strings.Contains(text, `"v0.1.0"`) {
			t.Errorf("%s still contains the chart's version", filepath.Base(file))
		}
	}
}

// installed lists the files of both packages, except the manual.
var installed = []string{
	"/etc/kube-ipvs/config.yaml", "/usr/bin/kube-ipvs", "/usr/lib/systemd/system/kube-ipvs.service",
	"/usr/lib/tmpfiles.d/kube-ipvs.conf", "/usr/share/doc/kube-ipvs/copyright",
}

// checkUnit checks that the unit may write the configured snapshot file, which only root can read.
func checkUnit(t *testing.T, root string) {
	t.Helper()
	unit := string(read(t, filepath.Join(root, "usr/lib/systemd/system/kube-ipvs.service")))
	for _, line := range []string{"\nProtectSystem=strict\n", "\nStateDirectory=kube-ipvs\n", "\nStateDirectoryMode=0700\n"} {
		if !strings.Contains(unit, line) {
			t.Errorf("the unit lacks %q:\n%s", line, unit)
		}
	}
	if config := string(read(t, filepath.Join(root, "etc/kube-ipvs/config.yaml"))); !strings.Contains(config, "file: /var/lib/kube-ipvs/snapshot\n") {
		t.Errorf("the configuration names no file in the state directory:\n%s", config)
	}
}

func debFile(t *testing.T, b *build) {
	for arch := range map[string]bool{"amd64": true, "arm64": true} {
		file := b.file("-linux-" + arch + ".deb")
		dir := t.TempDir()
		if out, err := exec.Command("dpkg-deb", "--raw-extract", file, dir).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for _, name := range installed {
			if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
				t.Error(err)
			}
		}
		checkUnit(t, dir)
		control := string(read(t, filepath.Join(dir, "DEBIAN/control")))
		for _, line := range []string{"Architecture: " + arch + "\n", "Version: 0.1.0~test-1\n", "Depends: iptables\n"} {
			if !strings.Contains(control, line) {
				t.Errorf("control lacks %q:\n%s", line, control)
			}
		}
		if got := string(read(t, filepath.Join(dir, "DEBIAN/conffiles"))); got != "/etc/kube-ipvs/config.yaml\n" {
			t.Errorf("conffiles %q", got)
		}
	}
}

func rpmFile(t *testing.T, b *build) {
	for arch, name := range map[string]string{"amd64": "x86_64", "arm64": "aarch64"} {
		opened, err := os.Open(b.file("-linux-" + arch + ".rpm"))
		if err != nil {
			t.Fatal(err)
		}
		defer opened.Close()
		pkg, err := rpmutils.ReadRpm(opened)
		if err != nil {
			t.Fatal(err)
		}
		id, err := pkg.Header.GetNEVRA()
		if err != nil || id.String() != "kube-ipvs-0:0.1.0~test-1."+name+".rpm" {
			t.Errorf("%v: %v", err, id)
		}
		dir := t.TempDir()
		if err := pkg.ExpandPayload(dir); err != nil {
			t.Fatal(err)
		}
		for _, name := range installed {
			if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
				t.Error(err)
			}
		}
		checkUnit(t, dir)
		for tag, want := range map[int]string{rpmutils.REQUIRENAME: "iptables", rpmutils.PREUN: "kube-ipvs cleanup", rpmutils.POSTIN: "daemon-reload"} {
			if got, err := pkg.Header.GetStrings(tag); err != nil || !strings.Contains(strings.Join(got, "\n"), want) {
				t.Errorf("tag %d: %v, %v; want %q", tag, got, err, want)
			}
		}
	}
}

// TestKeys: an unusable key is an error and does not lead to an unsigned release.
func TestKeys(t *testing.T) {
	if testing.Short() {
		t.Skip("deriving a key from a password takes seconds and a gigabyte of memory")
	}
	_, private, err := minisign.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := private.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	encrypted, err := minisign.EncryptKey("right", private)
	if err != nil {
		t.Fatal(err)
	}
	cosignKeys(t)
	for name, c := range map[string]struct {
		env   map[string]string
		wrong string
	}{
		"none":                             {nil, ""},
		"plain":                            {map[string]string{"RELEASE_MINISIGN_KEY": string(plain)}, ""},
		"encrypted":                        {map[string]string{"RELEASE_MINISIGN_KEY": string(encrypted), "RELEASE_MINISIGN_PASSWORD": "right"}, ""},
		"wrong password":                   {map[string]string{"RELEASE_MINISIGN_KEY": string(encrypted), "RELEASE_MINISIGN_PASSWORD": "wrong"}, "RELEASE_MINISIGN_KEY"},
		"no key":                           {map[string]string{"RELEASE_MINISIGN_KEY": "key"}, "RELEASE_MINISIGN_KEY"},
		"no cosign key":                    {map[string]string{"RELEASE_COSIGN_KEY": "key"}, "RELEASE_COSIGN_KEY"},
		"cosign key":                       {map[string]string{"RELEASE_COSIGN_KEY": os.Getenv("RELEASE_COSIGN_KEY"), "RELEASE_COSIGN_PASSWORD": "right"}, ""},
		"wrong password of the cosign key": {map[string]string{"RELEASE_COSIGN_KEY": os.Getenv("RELEASE_COSIGN_KEY")}, "RELEASE_COSIGN_KEY"},
		"no OpenPGP key":                   {map[string]string{"RELEASE_PGP_KEY": "key"}, "RELEASE_PGP_KEY"},
	} {
		_, err := keysFrom(func(name string) string { return c.env[name] })
		got := ""
		if err != nil {
			got, _, _ = strings.Cut(err.Error(), ":")
		}
		if d := cmp.Diff(c.wrong, got); d != "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}
