package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/debian"
)

// debianKernels maps each version to the Debian suite whose linux-image-amd64 has that version.
var debianKernels = map[string]string{
	"5.10":     "bullseye",
	"6.1":      "bookworm",
	"6.12":     "bookworm-backports",
	"unstable": "sid",
}

// kernelNames lists the versions that KERNEL accepts.
func kernelNames() string { return strings.Join(slices.Sorted(maps.Keys(debianKernels)), ", ") }

type kernel struct {
	release string // as in uname -r
	image   string
	modules string // the directory with modules.dep
}

// findKernel resolves the KERNEL option. It fetches a Debian kernel that is not in the cache.
func findKernel(want string) (kernel, error) {
	suite, known := debianKernels[want]
	if !known {
		return kernelAt(want)
	}
	dir, err := cacheDir("kernel")
	if err != nil {
		return kernel{}, err
	}
	tree := filepath.Join(dir, want)
	if _, err := os.Stat(tree); err == nil {
		return kernelAt(tree)
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return kernel{}, userErrorf("KERNEL=%s needs apt, which is not installed; use a kernel of this system, "+
			"such as KERNEL=/lib/modules/$(uname -r)/vmlinuz or KERNEL=/boot/vmlinuz-$(uname -r)", want)
	}
	err = withLock("kernel-"+want, func() error {
		if _, err := os.Stat(tree); err == nil {
			return nil
		}
		return fetchKernel(want, suite, tree)
	})
	if err != nil {
		return kernel{}, err
	}
	return kernelAt(tree)
}

func updatedApt(suite string) (debian.Apt, error) {
	dir, err := cacheDir("apt", suite)
	if err != nil {
		return debian.Apt{}, err
	}
	apt, err := debian.New(dir, suite, "amd64")
	if errors.Is(err, debian.ErrNotHere) {
		return apt, userErrorf("%v; or use KERNEL=PATH, such as KERNEL=/boot/vmlinuz-$(uname -r)", err)
	}
	return apt, err
}

// fetchKernel unpacks the suite's kernel into tree atomically.
func fetchKernel(version, suite, tree string) error {
	notice("fetching kernel %s from Debian %s (once)", version, suite)
	apt, err := updatedApt(suite)
	if err != nil {
		return err
	}
	packages, err := kernelPackages(apt)
	if err != nil {
		return err
	}
	return apt.UnpackWhole(tree, packages, func(unfinished string) error { return checkKernel(unfinished, version, suite) })
}

func checkKernel(tree, version, suite string) error {
	// depmod looks in /lib, which packages for merged-/usr releases lack.
	if _, err := os.Stat(filepath.Join(tree, "lib")); os.IsNotExist(err) {
		if err := os.Symlink("usr/lib", filepath.Join(tree, "lib")); err != nil {
			return err
		}
	}
	k, err := kernelAt(tree)
	if err != nil {
		return err
	}
	if version != "unstable" && !strings.HasPrefix(k.release, version+".") {
		return fmt.Errorf("the kernel of Debian %s is %s, not %s", suite, k.release, version)
	}
	return nil
}

// kernelPackages resolves linux-image-amd64. Newer kernels have separate packages for the image and the modules.
func kernelPackages(apt debian.Apt) ([]string, error) {
	var packages []string
	queue := []string{"linux-image-amd64"}
	for len(queue) > 0 {
		depends, err := apt.Depends(queue[0])
		if err != nil {
			return nil, err
		}
		queue = queue[1:]
		for _, name := range depends {
			if isKernelPackage(name) {
				packages = append(packages, name)
				queue = append(queue, name)
			}
		}
	}
	if len(packages) == 0 {
		return nil, fmt.Errorf("linux-image-amd64 depends on no kernel package")
	}
	return packages, nil
}

func isKernelPackage(name string) bool {
	for _, prefix := range []string{"linux-image-", "linux-binary-", "linux-modules-"} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// kernelAt accepts a vmlinuz, or a directory such as an unpacked package.
func kernelAt(path string) (kernel, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return kernel{}, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return kernel{}, userErrorf("KERNEL=%s is not a path, and not one of Debian's kernels (%s): %v", path, kernelNames(), err)
	}
	image := path
	if info.IsDir() {
		if image, err = imageIn(path); err != nil {
			return kernel{}, err
		}
	}
	release, err := imageRelease(image)
	if err != nil {
		return kernel{}, err
	}
	modules, err := modulesFor(image, release)
	if err != nil {
		return kernel{}, err
	}
	return kernel{release: release, image: image, modules: modules}, ensureDepmod(modules, release)
}

func imageIn(dir string) (string, error) {
	var images []string
	for _, pattern := range []string{"vmlinuz*", "boot/vmlinuz*", "lib/modules/*/vmlinuz", "usr/lib/modules/*/vmlinuz"} {
		found, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			return "", err
		}
		for _, image := range found {
			// /lib may be a link to /usr/lib.
			if real, err := filepath.EvalSymlinks(filepath.Dir(image)); err == nil && !slices.Contains(images, filepath.Join(real, filepath.Base(image))) {
				images = append(images, filepath.Join(real, filepath.Base(image)))
			}
		}
	}
	if len(images) != 1 {
		return "", userErrorf("KERNEL=%s contains %d kernel images %v; use one vmlinuz", dir, len(images), images)
	}
	return images[0], nil
}

// imageRelease reads the release from a bzImage. kernel_version in its header points to the version string (see
// Documentation/arch/x86/boot.rst of the kernel).
func imageRelease(path string) (string, error) {
	file, err := os.Open(path)
	if err != nil {
		return "", userErrorf("read the kernel: %v", err)
	}
	defer file.Close()
	head := make([]byte, 64<<10)
	n, err := io.ReadFull(file, head)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return bzImageRelease(path, head[:n])
}

func bzImageRelease(path string, head []byte) (string, error) {
	if len(head) < 0x210 || string(head[0x202:0x206]) != "HdrS" {
		return "", userErrorf("%s is not an x86 kernel image (bzImage)", path)
	}
	at := int(binary.LittleEndian.Uint16(head[0x20e:])) + 0x200
	if at >= len(head) {
		return "", fmt.Errorf("%s: the version string is beyond the part that was read", path)
	}
	text, _, _ := bytes.Cut(head[at:], []byte{0})
	release, _, _ := strings.Cut(string(text), " ")
	return release, nil
}

// modulesFor looks for the modules next to the image, in the tree of the unpacked package, and on the host.
func modulesFor(image, release string) (string, error) {
	dir := filepath.Dir(image)
	above := filepath.Dir(dir)
	candidates := []string{
		dir,
		filepath.Join(dir, "lib/modules", release),
		filepath.Join(above, "lib/modules", release),
		filepath.Join(above, "usr/lib/modules", release),
		filepath.Join("/lib/modules", release),
	}
	for _, c := range candidates {
		if _, err := os.Stat(filepath.Join(c, "kernel")); err == nil {
			return c, nil
		}
	}
	return "", userErrorf("no modules of kernel %s for %s; looked in %s", release, image, strings.Join(candidates, ", "))
}

// ensureDepmod writes modules.dep, which is missing if the package was unpacked but not installed.
func ensureDepmod(modules, release string) error {
	if _, err := os.Stat(filepath.Join(modules, "modules.dep")); err == nil {
		return nil
	}
	root, ok := strings.CutSuffix(modules, "/lib/modules/"+release)
	if !ok {
		return userErrorf("%s has no modules.dep; use depmod to create it", modules)
	}
	root = strings.TrimSuffix(root, "/usr") // depmod needs the directory that contains lib
	if out, err := exec.Command("depmod", "-b", root, release).CombinedOutput(); err != nil {
		return fmt.Errorf("depmod -b %s %s: %w\n%s", root, release, err, out)
	}
	return nil
}

func (k kernel) index() (moduleIndex, error) {
	dep, err := os.ReadFile(filepath.Join(k.modules, "modules.dep"))
	if err != nil {
		return moduleIndex{}, err
	}
	builtin, err := os.ReadFile(filepath.Join(k.modules, "modules.builtin"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return moduleIndex{}, err
	}
	return parseModules(string(dep), string(builtin)), nil
}

// readModule returns an uncompressed module. The guest's first process cannot decompress modules, and some kernels
// cannot either.
func (k kernel) readModule(file string) ([]byte, error) {
	path := file
	if !filepath.IsAbs(path) {
		path = filepath.Join(k.modules, file)
	}
	tools := map[string]string{".xz": "xz", ".zst": "zstd", ".gz": "gzip"}
	tool, compressed := tools[filepath.Ext(path)]
	if !compressed {
		return os.ReadFile(path)
	}
	data, err := exec.Command(tool, "-dc", path).Output()
	if err != nil {
		return nil, fmt.Errorf("%s -dc %s: %w", tool, path, err)
	}
	return data, nil
}
