package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/kube-ipvs/kube-ipvs/e2e/stories/image"
)

// build is a release being built.
type build struct {
	checkout, out string
	work          string // for files that are not part of the release
	version       string // begins with v
	commit        string
	when          time.Time // the time of the commit, used for every file
	image         string    // registry and repository; may be empty
	recipe        image.Recipe
	changes       section
	keys          keys
	index         v1.ImageIndex // set when the images are built
	materials     materials
}

// platform is a platform that the agent is built for.
type platform struct {
	arch, variant string
	machine       string // name of Debian's library directory; empty if there is no image
	os            string // empty for Linux
}

// Platforms without an image are built but not tested.
var platforms = []platform{
	{"amd64", "", "x86_64-linux-gnu", ""},
	{"arm64", "", "aarch64-linux-gnu", ""},
	{"arm", "7", "", ""},
	{"ppc64le", "", "", ""},
	{"riscv64", "", "", ""},
	{"s390x", "", "", ""},
	{"amd64", "", "", "windows"},
}

func (p platform) String() string {
	if p.variant != "" {
		return p.arch + "v" + p.variant
	}
	return p.arch
}

// system returns the operating system and the architecture.
func (p platform) system() string { return cmp.Or(p.os, "linux") + "-" + p.String() }

// bin returns the name of the program in an archive.
func (p platform) bin() string {
	if p.os == "windows" {
		return "kube-ipvs.exe"
	}
	return "kube-ipvs"
}

func (p platform) supported() bool { return p.machine != "" }

func newBuild(checkout, out, version, image string) (*build, error) {
	if out == "" {
		return nil, errors.New("-out is missing")
	}
	b := &build{checkout: checkout, out: out, version: version, image: image, materials: materials{}}
	if err := b.readCheckout(); err != nil {
		return nil, err
	}
	chart, err := chartVersion(checkout)
	if err != nil {
		return nil, err
	}
	if err := checkVersion(version, chart, b.commit); err != nil {
		return nil, err
	}
	changelog, err := os.ReadFile(filepath.Join(checkout, "CHANGELOG.md"))
	if err != nil {
		return nil, err
	}
	if b.changes, err = changesOf(string(changelog), version); err != nil {
		return nil, err
	}
	b.keys, err = keysFrom(os.Getenv)
	return b, err
}

// notProven is appended to the version of a draft.
const notProven = "-not-proven"

func (b *build) markUnproven() {
	b.version += notProven
	b.changes.text = "**Not proven**: the long tests have not passed on this commit. Do not use it in production.\n\n" + b.changes.text
}

// readCheckout reads the commit from git and settings from the Dockerfile. Without a git repository, as in a source
// archive, the environment contains the commit.
func (b *build) readCheckout() error {
	var err error
	if b.recipe, err = image.Read(b.checkout); err != nil {
		return err
	}
	b.commit = os.Getenv("RELEASE_COMMIT")
	epoch := os.Getenv("SOURCE_DATE_EPOCH")
	if b.commit == "" {
		if b.commit, err = b.git("describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"); err != nil {
			return fmt.Errorf("%w; outside a clone, set RELEASE_COMMIT and SOURCE_DATE_EPOCH", err)
		}
	}
	if epoch == "" {
		if epoch, err = b.git("log", "-1", "--format=%ct"); err != nil {
			return err
		}
	}
	seconds, err := strconv.ParseInt(epoch, 10, 64)
	if err != nil {
		return fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	b.when = time.Unix(seconds, 0).UTC()
	return nil
}

func (b *build) git(args ...string) (string, error) {
	out, err := exec.Command("git", append([]string{"-C", b.checkout}, args...)...).Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}

var versionPattern = regexp.MustCompile(`^v(\d+\.\d+\.\d+)(-[0-9A-Za-z.-]+)?$`)

// checkVersion checks that agent, chart and image have the same version. Only a pre-release may include uncommitted
// changes.
func checkVersion(version, chart, commit string) error {
	parts := versionPattern.FindStringSubmatch(version)
	switch {
	case parts == nil:
		return fmt.Errorf("version %q: use vMAJOR.MINOR.PATCH, or vMAJOR.MINOR.PATCH-PRERELEASE", version)
	case parts[1] != chart:
		return fmt.Errorf("version %s: charts/kube-ipvs/Chart.yaml has version %s; change it there and run make golden", version, chart)
	case parts[2] == "" && strings.HasSuffix(commit, "-dirty"):
		return fmt.Errorf("version %s: the checkout has uncommitted changes; commit them, or use a pre-release version", version)
	}
	return nil
}

func preRelease(version string) bool { return strings.Contains(version, "-") }

// all builds every file, then the checksums and their signature.
func (b *build) all() error {
	if err := os.RemoveAll(b.out); err != nil {
		return err
	}
	if err := os.MkdirAll(b.out, 0o755); err != nil {
		return err
	}
	var err error
	if b.work, err = os.MkdirTemp("", "kube-ipvs-release-"); err != nil {
		return err
	}
	defer os.RemoveAll(b.work)
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"programs", b.programs},
		{"kubectl", b.buildClients},
		{"krew", b.packClients},
		{"images", b.images},
		{"packages", b.packages},
		{"chart", b.chart},
		{"manifests", b.manifests},
		{"notes", b.notes},
		{"provenance", b.provenance},
		{"checksums", b.checksums},
	} {
		began := time.Now()
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		fmt.Printf("%-10s %4.0f s\n", step.name, time.Since(began).Seconds())
	}
	return nil
}

// file returns the path of a release file.
func (b *build) file(suffix string) string {
	return filepath.Join(b.out, "kube-ipvs-"+b.version+suffix)
}

func (b *build) program(p platform) string { return filepath.Join(b.work, p.system(), "kube-ipvs") }

// programs builds the agent as the Dockerfile does, and packs it with its license and SBOM.
func (b *build) programs() error {
	for _, p := range platforms {
		if err := b.buildProgram(p); err != nil {
			return err
		}
		if err := b.sbom(p, "kube-ipvs", nil, b.file("-"+p.system()+".cdx.json")); err != nil {
			return err
		}
	}
	return b.packPrograms()
}

// packPrograms packs the programs with their license. Windows opens zip files without another program.
func (b *build) packPrograms() error {
	for _, p := range platforms {
		archive := tree{
			{name: "LICENSE", source: filepath.Join(b.checkout, "LICENSE"), mode: 0o644},
			{name: p.bin(), source: b.program(p), mode: 0o755},
		}
		pack, suffix := archive.compress, ".tar.gz"
		if p.os == "windows" {
			pack, suffix = archive.zip, ".zip"
		}
		if err := pack(b.file("-"+p.system()+suffix), b.when); err != nil {
			return err
		}
	}
	return nil
}

func (b *build) buildProgram(p platform) error {
	environment := []string{"GOOS=" + cmp.Or(p.os, "linux"), "GOARCH=" + p.arch}
	if p.variant != "" {
		environment = append(environment, "GOARM="+p.variant)
	}
	return b.recipe.BuildAgent(filepath.Dir(b.program(p)), b.version, b.commit, environment...)
}
