package debian

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cachedir"
)

// The nft of the next stable release shows some rules differently, or not at all.
const nextSuite = "trixie"

// NextNFT returns a command that runs the next Debian release's nft, which FetchNextNFT has unpacked.
func NextNFT(root string) ([]string, error) {
	tree := cachedir.Path(root, "nft", nextSuite)
	loaders, err := filepath.Glob(filepath.Join(tree, "usr/lib/*/ld-linux-*.so.*"))
	if err != nil {
		return nil, err
	}
	if len(loaders) != 1 {
		return nil, fmt.Errorf("nft of Debian %[2]s is missing from %[1]s; run make prepare", tree, nextSuite)
	}
	return []string{loaders[0], "--library-path", filepath.Dir(loaders[0]), filepath.Join(tree, "usr/sbin/nft")}, nil
}

// FetchNextNFT downloads and unpacks the next Debian release's nft.
func FetchNextNFT(root, architecture string) error {
	tree := cachedir.Path(root, "nft", nextSuite)
	if _, err := os.Stat(tree); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	apt, err := New(tree+".apt", nextSuite, architecture)
	if err != nil {
		return err
	}
	packages, err := apt.Closure("nftables")
	if err != nil {
		return err
	}
	return apt.UnpackWhole(tree, packages, func(string) error { return os.RemoveAll(apt.dir) })
}
