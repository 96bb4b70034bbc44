// Package upstream builds the programs that the end-to-end tests run against and returns their paths.
//
// Each directory below this one is a separate Go module. This keeps Kubernetes out of the agent's
// go.mod and builds every program with exactly the dependency versions of its release: a common
// module would raise kube-proxy's netlink and gRPC to the versions that etcd requires.
package upstream

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cachedir"
)

// The programs, by file name.
const (
	Etcd          = "etcd"
	KubeAPIServer = "kube-apiserver"
	KubeProxy     = "kube-proxy"

	Kubelet               = "kubelet"
	KubeControllerManager = "kube-controller-manager"
	KubeScheduler         = "kube-scheduler"
	Kubectl               = "kubectl"
	Agnhost               = "agnhost" // the server and client in the pods of Kubernetes' tests
	InvalidPackets        = "regression-issue-74839"
	Containerd            = "containerd"
	Ctr                   = "ctr"
	CoreDNS               = "coredns"
	BridgePlugin          = "bridge"
	E2ETest               = "e2e.test" // Kubernetes' own tests

	KubeRouter = "kube-router"
)

// BuildCommand builds every program. It works from any directory of the main module.
const BuildCommand = "go run github.com/kube-ipvs/kube-ipvs/e2e/testbed/cmd/upstream"

// Set selects programs by the tests that need them. Each set includes ControlPlane, and KubernetesTests includes Cluster.
type Set int

// Only the first set builds quickly.
const (
	ControlPlane    Set = iota
	Cluster             // nodes with kubelets
	KubernetesTests     // Kubernetes' own tests
	Peers               // other projects that replace kube-proxy
)

func (s Set) includes(other Set) bool {
	return other == s || other == ControlPlane || s == KubernetesTests && other == Cluster
}

// RootVariable names the environment variable with the checkout's directory.
const RootVariable = "KUBE_IPVS_ROOT"

// ErrNotBuilt means that the cache lacks a program of the pinned version.
var ErrNotBuilt = errors.New("not built")

// release is one module below this directory.
type release struct {
	folder   string // under e2e/testbed/upstream
	part     string // name in the cache, if two releases share a module; otherwise empty
	set      Set
	module   string // its pinned version is the release's version
	tags     string
	stamp    []string // variables that receive the version at link time
	cost     string   // duration of a first build
	programs []program
}

// A program whose name ends in ".test" contains the tests of a package.
type program struct{ name, pkg string }

func (p program) isTest() bool { return strings.HasSuffix(p.name, ".test") }

// These tags and variables are from Kubernetes' release build: hack/lib/golang.sh and hack/lib/version.sh.
const kubernetesTags = "selinux,notest,grpcnotrace"

var kubernetesStamp = []string{"k8s.io/component-base/version.gitVersion", "k8s.io/client-go/pkg/version.gitVersion"}

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
		tags:   kubernetesTags,
		stamp:  kubernetesStamp,
		cost:   "about 3 minutes on 2 cores",
		programs: []program{
			{KubeAPIServer, "k8s.io/kubernetes/cmd/kube-apiserver"},
			{KubeProxy, "k8s.io/kubernetes/cmd/kube-proxy"},
		},
	},
	{
		// This is a separate module, because its programs need many more modules, and most tests need only the two
		// releases above.
		folder: "node",
		set:    Cluster,
		module: "k8s.io/kubernetes",
		tags:   kubernetesTags,
		stamp:  kubernetesStamp,
		cost:   "about 5 minutes on 2 cores",
		programs: []program{
			{Kubelet, "k8s.io/kubernetes/cmd/kubelet"},
			{KubeControllerManager, "k8s.io/kubernetes/cmd/kube-controller-manager"},
			{KubeScheduler, "k8s.io/kubernetes/cmd/kube-scheduler"},
			{Kubectl, "k8s.io/kubernetes/cmd/kubectl"},
			{Agnhost, "k8s.io/kubernetes/test/images/agnhost"},
			{InvalidPackets, "k8s.io/kubernetes/test/images/regression-issue-74839"},
		},
	},
	{
		folder: "containerd",
		set:    Cluster,
		module: "github.com/containerd/containerd/v2",
		tags:   "no_btrfs,no_zfs,no_devmapper,no_aufs,osusergo,netgo",
		stamp:  []string{"github.com/containerd/containerd/v2/version.Version"},
		cost:   "about 2 minutes on 2 cores",
		programs: []program{
			{Containerd, "github.com/containerd/containerd/v2/cmd/containerd"},
			{"containerd-shim-runc-v2", "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"},
			{Ctr, "github.com/containerd/containerd/v2/cmd/ctr"},
		},
	},
	{
		folder: "cni",
		set:    Cluster,
		module: "github.com/containernetworking/plugins",
		cost:   "less than a minute on 2 cores",
		programs: []program{
			{BridgePlugin, "github.com/containernetworking/plugins/plugins/main/bridge"},
			{"loopback", "github.com/containernetworking/plugins/plugins/main/loopback"},
			{"host-local", "github.com/containernetworking/plugins/plugins/ipam/host-local"},
			{"portmap", "github.com/containernetworking/plugins/plugins/meta/portmap"},
		},
	},
	{
		folder:   "coredns",
		set:      Cluster,
		module:   "github.com/coredns/coredns",
		cost:     "about 2 minutes on 2 cores",
		programs: []program{{CoreDNS, "."}},
	},
	{
		folder:   "node",
		part:     "tests",
		set:      KubernetesTests,
		module:   "k8s.io/kubernetes",
		tags:     kubernetesTags,
		stamp:    kubernetesStamp,
		cost:     "about 5 minutes on 2 cores",
		programs: []program{{E2ETest, "k8s.io/kubernetes/test/e2e"}},
	},
	{
		folder:   "kuberouter",
		set:      Peers,
		module:   "github.com/cloudnativelabs/kube-router/v2",
		stamp:    []string{"github.com/cloudnativelabs/kube-router/v2/pkg/version.Version"},
		cost:     "about 3 minutes on 2 cores",
		programs: []program{{KubeRouter, "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router"}},
	},
}

func (s Set) command() string {
	return BuildCommand + [...]string{"", " -cluster", " -tests", " -peers"}[s]
}

// Root returns the checkout's directory: $KUBE_IPVS_ROOT, or the nearest checkout above the working directory.
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
			return "", fmt.Errorf("%s is not inside a kube-ipvs checkout; change to one, or set %s to its directory", start, RootVariable)
		}
	}
}

// Path returns the path of the named program. It never builds: if the program is missing, the error is ErrNotBuilt.
func Path(root, name string) (string, error) {
	r, pin, err := find(root, name)
	if err != nil {
		return "", err
	}
	path := filepath.Join(pin.dir, name)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%s %s is %w (looked for %s); build it once with: %s", name, pin.version, ErrNotBuilt, path, r.set.command())
	} else if err != nil {
		return "", fmt.Errorf("find %s: %w", name, err)
	}
	return path, nil
}

// Version returns the pinned release of the named program.
func Version(root, name string) (string, error) {
	_, pin, err := find(root, name)
	return pin.version, err
}

func find(root, name string) (release, pin, error) {
	for _, r := range releases {
		if slices.ContainsFunc(r.programs, func(p program) bool { return p.name == name }) {
			pin, err := r.pin(root)
			return r, pin, err
		}
	}
	return release{}, pin{}, fmt.Errorf("no module of e2e/testbed/upstream pins a program called %q", name)
}

type pin struct {
	version string
	dir     string // directory of the programs; exists only when all are built
}

// pin reads the module files. The directory's name contains a digest of everything that affects the build's output,
// so two branches keep separate builds.
func (r release) pin(root string) (pin, error) {
	goMod, err := os.ReadFile(filepath.Join(r.source(root), "go.mod"))
	if err != nil {
		return pin{}, fmt.Errorf("read the pins of %s: %w", r.folder, err)
	}
	goSum, err := os.ReadFile(filepath.Join(r.source(root), "go.sum"))
	if err != nil {
		return pin{}, fmt.Errorf("read the pins of %s: %w", r.folder, err)
	}
	version := r.required(goMod)
	if version == "" {
		return pin{}, fmt.Errorf("%s/go.mod does not require %s", r.source(root), r.module)
	}
	digest := sha256.New()
	fmt.Fprintf(digest, "%q\n%q\n%q\n", goMod, goSum, r.flags(version))
	program, err := os.ReadFile(filepath.Join(r.source(root), "main.go")) // only releases assembled from packages have this file
	if err == nil {
		digest.Write(program)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return pin{}, fmt.Errorf("read the program of %s: %w", r.folder, err)
	}
	sum := hex.EncodeToString(digest.Sum(nil))[:8]
	return pin{
		version: version,
		dir:     filepath.Join(cache(root), fmt.Sprintf("%s-%s-%s", r.name(), version, sum)),
	}, nil
}

// required returns the version of the release in a go.mod, or an empty string.
func (r release) required(goMod []byte) string {
	requirement := regexp.MustCompile(`(?m)^(?:require|\t)\s*` + regexp.QuoteMeta(r.module) + ` (v\S+)`)
	if match := requirement.FindSubmatch(goMod); match != nil {
		return string(match[1])
	}
	return ""
}

// flags returns the arguments of go build that affect its output.
func (r release) flags(version string) []string {
	ldflags := "-s -w"
	for _, variable := range r.stamp {
		ldflags += fmt.Sprintf(" -X %s=%s", variable, version)
	}
	return []string{"-trimpath", "-buildvcs=false", "-mod=readonly", "-tags=" + r.tags, "-ldflags=" + ldflags}
}

func (r release) name() string { return cmp.Or(r.part, r.folder) }

func (r release) source(root string) string {
	if version := r.otherVersion(root); version != "" {
		return filepath.Join(cache(root), r.folder+"-source-"+version)
	}
	return r.pinned(root)
}

// pinned returns the directory of the release's module in the checkout.
func (r release) pinned(root string) string {
	return filepath.Join(root, "e2e", "testbed", "upstream", r.folder)
}

func cache(root string) string { return cachedir.Path(root, "upstream") }
