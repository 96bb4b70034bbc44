// Package upstream builds the programs that the end-to-end tests run against (etcd, kube-apiserver, kube-proxy) and returns
// their paths.
//
// Each folder below this one is a separate Go module. This keeps Kubernetes out of the agent's go.mod, and builds every
// program with exactly the dependency versions of its release: a common module would raise kube-proxy's netlink and gRPC to
// the versions that etcd requires.
package upstream

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cachedir"
)

// The programs, by the name of their file.
const (
	Etcd          = "etcd"
	KubeAPIServer = "kube-apiserver"
	KubeProxy     = "kube-proxy"
)

// BuildCommand builds every program. It works in any folder of the main module.
const BuildCommand = "go run github.com/kube-ipvs/kube-ipvs/e2e/testbed/cmd/upstream"

// RootVariable names the environment variable with the checkout's folder, for test binaries that run outside it.
const RootVariable = "KUBE_IPVS_ROOT"

// ErrNotBuilt means that a program is missing from the cache, or that the cache holds only builds of other pins.
var ErrNotBuilt = errors.New("not built")

// release is one module of this folder with the programs it pins.
type release struct {
	folder   string // below e2e/testbed/upstream
	module   string // its pinned version names the release
	tags     string
	stamp    []string // variables that take the version at link time
	cost     string   // of a first build, for the one who waits for it
	programs []program
}

type program struct{ name, pkg string }

var releases = []release{
	{
		folder:   "etcd",
		module:   "go.etcd.io/etcd/server/v3",
		cost:     "about 1 minute on 2 cores",
		programs: []program{{Etcd, "go.etcd.io/etcd/server/v3"}},
	},
	{
		folder: "kubernetes",
		module: "k8s.io/kubernetes",
		// What Kubernetes' own release build sets: hack/lib/golang.sh and hack/lib/version.sh.
		tags:  "selinux,notest,grpcnotrace",
		stamp: []string{"k8s.io/component-base/version.gitVersion", "k8s.io/client-go/pkg/version.gitVersion"},
		cost:  "about 3 minutes on 2 cores",
		programs: []program{
			{KubeAPIServer, "k8s.io/kubernetes/cmd/kube-apiserver"},
			{KubeProxy, "k8s.io/kubernetes/cmd/kube-proxy"},
		},
	},
}

// Root returns the checkout's folder: $KUBE_IPVS_ROOT, or the nearest one above the working directory.
func Root() (string, error) {
	if root := os.Getenv(RootVariable); root != "" {
		return root, nil
	}
	start, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the checkout: %w", err)
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "e2e", "testbed", "upstream", "kubernetes", "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("%s is not inside a kube-ipvs checkout: change there, or set %s to its folder", start, RootVariable)
		}
	}
}

// Path returns where the checkout at root has the named program. It never builds: where it is missing the error is
// ErrNotBuilt and names the command that builds it.
func Path(root, name string) (string, error) {
	for _, r := range releases {
		if !slices.ContainsFunc(r.programs, func(p program) bool { return p.name == name }) {
			continue
		}
		pin, err := r.pin(root)
		if err != nil {
			return "", err
		}
		path := filepath.Join(pin.dir, name)
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("%s %s is %w (looked for %s): build it once with: %s", name, pin.version, ErrNotBuilt, path, BuildCommand)
		} else if err != nil {
			return "", fmt.Errorf("find %s: %w", name, err)
		}
		return path, nil
	}
	return "", fmt.Errorf("no module of e2e/testbed/upstream pins a program called %q", name)
}

// pin is the version that a release's module files currently require.
type pin struct {
	version string
	dir     string // holds the finished programs; exists only when all of them are there
}

// pin reads the module files. The folder's name carries a digest of everything that decides what the build produces, so a
// changed pin is simply a folder that does not exist yet, and two branches keep their builds side by side.
func (r release) pin(root string) (pin, error) {
	goMod, err := os.ReadFile(filepath.Join(r.source(root), "go.mod"))
	if err != nil {
		return pin{}, fmt.Errorf("read the pins of %s: %w", r.folder, err)
	}
	goSum, err := os.ReadFile(filepath.Join(r.source(root), "go.sum"))
	if err != nil {
		return pin{}, fmt.Errorf("read the pins of %s: %w", r.folder, err)
	}
	requirement := regexp.MustCompile(`(?m)^(?:require|\t)\s*` + regexp.QuoteMeta(r.module) + ` (v\S+)`)
	match := requirement.FindSubmatch(goMod)
	if match == nil {
		return pin{}, fmt.Errorf("%s/go.mod does not require %s", r.source(root), r.module)
	}
	version := string(match[1])
	digest := sha256.New()
	fmt.Fprintf(digest, "%q\n%q\n%q\n", goMod, goSum, r.flags(version))
	sum := hex.EncodeToString(digest.Sum(nil))[:8]
	return pin{
		version: version,
		dir:     filepath.Join(cache(root), fmt.Sprintf("%s-%s-%s", r.folder, version, sum)),
	}, nil
}

// flags are the arguments of go build that decide what it produces.
func (r release) flags(version string) []string {
	ldflags := "-s -w"
	for _, variable := range r.stamp {
		ldflags += fmt.Sprintf(" -X %s=%s", variable, version)
	}
	return []string{"-trimpath", "-buildvcs=false", "-mod=readonly", "-tags=" + r.tags, "-ldflags=" + ldflags}
}

func (r release) source(root string) string {
	return filepath.Join(root, "e2e", "testbed", "upstream", r.folder)
}

func cache(root string) string { return cachedir.Path(root, "upstream") }
