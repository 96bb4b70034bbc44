package main

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/kube-ipvs/kube-ipvs/e2e/stories/image"
)

// TestRelease builds the whole release twice and pushes it to a registry.
func TestRelease(t *testing.T) {
	if os.Getenv("KUBE_IPVS_E2E") != "1" {
		t.Skip("NOT RUN: this test builds the agent for seven platforms; use make release-test")
	}
	source := throwAway(t)
	t.Setenv("RELEASE_COMMIT", testCommit)
	t.Setenv("SOURCE_DATE_EPOCH", testEpoch)
	first := complete(t, source)
	t.Run("signatures", func(t *testing.T) { signatures(t, first) })
	t.Run("provenance", func(t *testing.T) { provenanceOf(t, first); materialsOf(t, first) })
	t.Run("programs", func(t *testing.T) { programs(t, first) })
	t.Run("krew", func(t *testing.T) { krew(t, first) })
	t.Run("images", func(t *testing.T) { images(t, first) })
	t.Run("publish", func(t *testing.T) { published(t, first) })
	t.Run("same bytes", func(t *testing.T) { sameRelease(t, first) })
	t.Run("same program without a cache", func(t *testing.T) { cold(t, first) })
}

func complete(t *testing.T, checkout string) *build {
	t.Helper()
	b, err := newBuild(checkout, t.TempDir(), testVersion, testImage)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.all(); err != nil {
		t.Fatal(err)
	}
	return b
}

func sameRelease(t *testing.T, first *build) {
	second := complete(t, copied(t, first.checkout))
	entries, err := os.ReadDir(first.out)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		switch {
		case strings.HasSuffix(e.Name(), ".prov"), strings.HasSuffix(e.Name(), ".sigstore.json"), strings.HasSuffix(e.Name(), "-image-signatures.tar"),
			strings.HasPrefix(e.Name(), "SHA256SUMS"): // signatures contain random numbers
		case !bytes.Equal(read(t, filepath.Join(first.out, e.Name())), read(t, filepath.Join(second.out, e.Name()))):
			t.Errorf("%s differs between two builds of the same sources", e.Name())
		}
	}
}

// cold rebuilds the agent with an empty cache, because the other builds share a cache.
func cold(t *testing.T, first *build) {
	t.Setenv("GOCACHE", t.TempDir())
	second := stub(t, copied(t, first.checkout))
	if err := os.Remove(second.program(platforms[0])); err != nil {
		t.Fatal(err)
	}
	if err := second.buildProgram(platforms[0]); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(unpacked(t, first, platforms[0]), read(t, second.program(platforms[0]))) {
		t.Error("the program differs when recompiled without a cache")
	}
}

func unpacked(t *testing.T, b *build, p platform) []byte {
	t.Helper()
	if p.os == "windows" {
		archive, err := zip.OpenReader(b.file("-" + p.system() + ".zip"))
		if err != nil {
			t.Fatal(err)
		}
		defer archive.Close()
		content, err := fs.ReadFile(archive, p.bin())
		if err != nil {
			t.Fatal(err)
		}
		return content
	}
	out, err := exec.Command("tar", "-xOf", b.file("-"+p.system()+".tar.gz"), p.bin()).Output()
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// programs runs the program for this machine's platform. It runs the programs for other platforms in an emulator.
func programs(t *testing.T, b *build) {
	for _, p := range platforms {
		file := filepath.Join(t.TempDir(), "kube-ipvs")
		write(t, file, string(unpacked(t, b, p)))
		if p.os == "windows" {
			t.Log("NOT RUN: the program for Windows; make windows-test runs one")
			continue
		}
		command := exec.Command(file, "--version")
		if p.arch != "amd64" {
			emulator, err := exec.LookPath("qemu-" + strings.NewReplacer("arm64", "aarch64").Replace(p.arch) + "-static")
			if errors.Is(err, exec.ErrNotFound) {
				t.Logf("NOT RUN: the program for %s; install qemu-user-static to run it", p)
				continue
			}
			command = exec.Command(emulator, file, "--version")
		}
		out, err := command.CombinedOutput()
		want := fmt.Sprintf("kube-ipvs %s (commit %s, go", testVersion, testCommit)
		if err != nil || !strings.HasPrefix(string(out), want) || !strings.Contains(string(out), "linux/"+p.arch) {
			t.Errorf("%s: %v, %q; want %q", p, err, out, want)
		}
	}
}

// images compares this machine's image with the Dockerfile's output, file by file. For other images, it only checks
// the platform.
func images(t *testing.T, b *build) {
	index := layoutOf(t, b)
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	var have []string
	for _, m := range manifest.Manifests {
		img, err := index.Image(m.Digest)
		if err != nil {
			t.Fatal(err)
		}
		have = append(have, m.Platform.String())
		checkImage(t, img, m.Platform.Architecture)
	}
	if d := cmp.Diff([]string{"linux/amd64", "linux/arm64"}, have); d != "" {
		t.Error(d)
	}
}

func checkImage(t *testing.T, img v1.Image, arch string) {
	t.Helper()
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.Architecture != arch || config.Config.Entrypoint[0] != "/usr/local/bin/kube-ipvs" || config.Config.Labels["org.opencontainers.image.version"] != testVersion ||
		config.Config.Labels["org.opencontainers.image.revision"] != testCommit {
		t.Errorf("%s: configuration %+v", arch, config)
	}
	files := contentOf(t, img)
	if arch == "arm64" {
		t.Run("iptables for arm64", func(t *testing.T) { foreign(t, img) })
		return
	}
	if _, err := os.Stat("/usr/sbin/xtables-nft-multi"); err != nil {
		t.Fatal("the package iptables is not installed; use apt-get install iptables")
	}
	recipe, err := image.Read(checkout)
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	if err := recipe.Assemble(root, testVersion, testCommit); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(filesBelow(t, root), files); d != "" {
		t.Errorf("files (-made by the Dockerfile +released):\n%s", d)
	}
}

// foreign runs the arm64 image's iptables in an emulator, with only the image's files.
func foreign(t *testing.T, img v1.Image) {
	emulator, err := exec.LookPath("qemu-aarch64-static")
	if err != nil {
		t.Skip("NOT RUN: install qemu-user-static to run this test")
	}
	root := t.TempDir()
	unpack := exec.Command("tar", "-xf", "-", "-C", root)
	unpack.Stdin = mutate.Extract(img)
	if out, err := unpack.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, variant := range []string{"nft", "legacy"} {
		out, err := exec.Command(emulator, "-L", root, filepath.Join(root, "usr/sbin/xtables-"+variant+"-multi"), "iptables", "--version").CombinedOutput()
		// The emulator lacks netlink sockets for nf_tables, so check only that the loader found all libraries.
		if started := err == nil && strings.HasPrefix(string(out), "iptables v1.8") || strings.Contains(string(out), "initialize nft: Protocol not supported"); !started {
			t.Errorf("%s: %v, %s", variant, err, out)
		}
	}
}

func layoutOf(t *testing.T, b *build) v1.ImageIndex {
	t.Helper()
	all, err := unpackLayout(b.file("-image.tar"), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := all.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(manifest.Manifests) != 1 || manifest.Manifests[0].Annotations[refName] != testVersion {
		t.Fatalf("the layout contains %+v; want one index", manifest.Manifests)
	}
	index, err := all.ImageIndex(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	return index
}

func summary(mode fs.FileMode, link string, content []byte) string {
	if link != "" {
		return "-> " + link
	}
	return fmt.Sprintf("%v %x", mode.Perm(), sha256.Sum256(content))
}

func contentOf(t *testing.T, img v1.Image) map[string]string {
	t.Helper()
	files := map[string]string{}
	for archive := tar.NewReader(mutate.Extract(img)); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		} else if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag != tar.TypeDir {
			files["/"+h.Name] = summary(h.FileInfo().Mode(), h.Linkname, content)
		}
	}
}

func filesBelow(t *testing.T, root string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		name := strings.TrimPrefix(path, root)
		if info.Mode().Type() == fs.ModeSymlink {
			link, err := os.Readlink(path)
			files[name] = summary(0, link, nil)
			return err
		}
		content, err := os.ReadFile(path)
		files[name] = summary(info.Mode(), "", content)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// materialsOf checks that the provenance lists modules and Debian packages with their checksums.
func materialsOf(t *testing.T, b *build) {
	var s statement
	if err := json.Unmarshal(read(t, b.file("-provenance.json")), &s); err != nil {
		t.Fatal(err)
	}
	found := map[string]int{}
	for _, r := range s.Predicate.BuildDefinition.ResolvedDependencies {
		kind, _, _ := strings.Cut(r.URI, "@")
		for algorithm, digest := range r.Digest {
			found[fmt.Sprintf("%s %s of %d digits", kind, algorithm, len(digest))]++
		}
	}
	// A Debian package is different for each architecture.
	for what, want := range map[string]int{"pkg:deb/debian/iptables sha256 of 64 digits": 2, "pkg:golang/github.com/vishvananda/netlink dirHash of 64 digits": 1} {
		if found[what] != want {
			t.Errorf("%s: %d, want %d", what, found[what], want)
		}
	}
}
