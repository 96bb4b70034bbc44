package debian

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cachedir"
)

// The Wine of Debian 12 lacks a library that each Go program needs (bcryptprimitives.dll).
const wineSuite = "trixie"

// Wine returns a root directory with Wine, which FetchWine has unpacked.
func Wine(root string) (string, error) {
	tree := cachedir.Path(root, "wine", wineSuite)
	if _, err := os.Stat(tree); err != nil {
		return "", fmt.Errorf("%w; use make windows-test, which unpacks it", err)
	}
	return tree, nil
}

// FetchWine downloads and unpacks Wine, and the libraries that programs without windows need. Wine's other dependencies
// are for graphics and sound.
func FetchWine(root, architecture string) error {
	tree := cachedir.Path(root, "wine", wineSuite)
	if _, err := os.Stat(tree); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if architecture != "amd64" {
		return fmt.Errorf("%w that run programs for Windows on %s", ErrNotHere, architecture)
	}
	apt, err := New(tree+".apt", wineSuite, architecture)
	if err != nil {
		return err
	}
	packages := []string{"wine64", "libwine", "libz-mingw-w64"}
	for _, needed := range []string{"libc6", "libunwind8", "coreutils"} {
		closure, err := apt.Closure(needed)
		if err != nil {
			return err
		}
		packages = append(packages, closure...)
	}
	return apt.UnpackWhole(tree, packages, func(unfinished string) error {
		configure := exec.Command("sh", "-ec", `
			mkdir -p dev etc proc tmp work
			for dir in bin lib lib64 sbin; do test -e $dir || ln -s usr/$dir $dir; done
			ln -sf wineserver64 usr/lib/wine/wineserver
			cp usr/x86_64-w64-mingw32/lib/zlib1.dll usr/lib/x86_64-linux-gnu/wine/x86_64-windows/`)
		configure.Dir = unfinished
		if out, err := configure.CombinedOutput(); err != nil {
			return fmt.Errorf("configure the packages: %w\n%s", err, out)
		}
		return os.RemoveAll(apt.dir)
	})
}
