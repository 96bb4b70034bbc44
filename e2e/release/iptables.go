package main

import (
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/debian"
)

// deb is a Debian package with files of the image.
type deb struct {
	name, version, architecture string
	checksum                    string // SHA-256 of the package
	dir                         string // contains the unpacked package
}

// iptables collects the files of the Dockerfile's stage "rootfs": the iptables programs, their extensions, the
// libraries of both, and licenses. It cannot run ldd and dpkg as the Dockerfile does, because the programs may be for
// another architecture.
func (b *build) iptables(p platform) (tree, []deb, error) {
	all, err := b.debs(p)
	if err != nil {
		return nil, nil, err
	}
	r := rootfs{platform: p, all: all, files: map[string]string{}, used: map[string]deb{}}
	for _, pattern := range []string{
		"usr/sbin/xtables-nft-multi", "usr/sbin/xtables-legacy-multi",
		"usr/lib/*/xtables/libxt_*.so", "usr/lib/*/xtables/libipt_*.so", "usr/lib/*/xtables/libip6t_*.so",
	} {
		if err := r.addMatching(pattern); err != nil {
			return nil, nil, err
		}
	}
	if err := r.addLicenses(); err != nil {
		return nil, nil, err
	}
	files, err := r.tree()
	return files, slices.SortedFunc(maps.Values(r.used), func(a, b deb) int { return strings.Compare(a.name, b.name) }), err
}

// suiteOf matches the Debian release in the name of the base image.
var suiteOf = regexp.MustCompile(`^debian:([a-z]+)(-slim)?$`)

// debs downloads iptables and its dependencies from the Debian release of the Dockerfile's base image.
func (b *build) debs(p platform) ([]deb, error) {
	base, err := b.recipe.Variable("BASE_IMAGE")
	if err != nil {
		return nil, err
	}
	suite := suiteOf.FindStringSubmatch(base)
	if suite == nil {
		return nil, fmt.Errorf("BASE_IMAGE %s is not a Debian release", base)
	}
	apt, err := debian.New(filepath.Join(b.work, "apt", p.arch), suite[1], p.arch)
	if err != nil {
		return nil, err
	}
	packages, err := apt.Closure("iptables")
	if err != nil {
		return nil, err
	}
	var all []deb
	for _, name := range packages {
		d := deb{name: name, architecture: p.arch, dir: filepath.Join(b.work, "debs", p.arch, name)}
		if err := os.MkdirAll(d.dir, 0o755); err != nil {
			return nil, err
		}
		if err := apt.Unpack(d.dir, []string{d.name}); err != nil {
			return nil, err
		}
		if d.version, err = apt.Version(d.name); err != nil {
			return nil, err
		}
		if d.checksum, err = apt.Checksum(d.name); err != nil {
			return nil, err
		}
		all = append(all, d)
	}
	return all, nil
}

// rootfs collects files and the libraries that they need.
type rootfs struct {
	platform
	all   []deb
	files map[string]string // source by path in the image
	used  map[string]deb
}

func (r *rootfs) addMatching(pattern string) error {
	found := false
	for _, d := range r.all {
		matches, err := filepath.Glob(filepath.Join(d.dir, pattern))
		if err != nil {
			return err
		}
		for _, file := range matches {
			found = true
			if err := r.add(d, strings.TrimPrefix(file, d.dir+"/"), file); err != nil {
				return err
			}
		}
	}
	if !found {
		return fmt.Errorf("no package contains %s", pattern)
	}
	return nil
}

func (r *rootfs) add(from deb, name, source string) error {
	if r.files[name] != "" {
		return nil
	}
	r.files[name], r.used[from.name] = source, from
	binary, err := elf.Open(source)
	if err != nil {
		return fmt.Errorf("%s: %w", source, err)
	}
	defer binary.Close()
	libraries, err := binary.ImportedLibraries()
	if err != nil {
		return fmt.Errorf("%s: %w", source, err)
	}
	for _, library := range libraries {
		if err := r.addLibrary(library, "lib/"+r.machine+"/"+library); err != nil {
			return err
		}
	}
	for _, p := range binary.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		loader := make([]byte, p.Filesz-1) // without the trailing zero byte
		if _, err := p.ReadAt(loader, 0); err != nil {
			return err
		}
		if err := r.addLibrary(filepath.Base(string(loader)), strings.TrimPrefix(string(loader), "/")); err != nil {
			return err
		}
	}
	return nil
}

// addLibrary searches the same directories as the loader. It skips the loader itself, because programs
// refer to it by path.
func (r *rootfs) addLibrary(library, name string) error {
	if strings.HasPrefix(library, "ld-linux") && strings.HasPrefix(name, "lib/"+r.machine+"/") {
		return nil
	}
	for _, d := range r.all {
		for _, dir := range []string{"lib/" + r.machine, "usr/lib/" + r.machine} {
			file := filepath.Join(d.dir, dir, library)
			if _, err := os.Stat(file); err == nil {
				return r.add(d, name, file)
			} else if !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return fmt.Errorf("no package contains the library %s", library)
}

func (r *rootfs) addLicenses() error {
	for _, d := range r.used {
		name := "usr/share/doc/" + d.name + "/copyright"
		source := filepath.Join(d.dir, name)
		if _, err := os.Stat(source); err != nil {
			return err
		}
		r.files[name] = source
	}
	return nil
}

// tree adds directories, and links with the names that the agent uses.
func (r *rootfs) tree() (tree, error) {
	t := tree{{name: "run", mode: 0o755}, {name: "etc", mode: 0o755}}
	for name, source := range r.files {
		info, err := os.Stat(source)
		if err != nil {
			return nil, err
		}
		t = append(t, entry{name: name, source: source, mode: int64(info.Mode().Perm())})
	}
	for _, command := range []string{"iptables", "ip6tables"} {
		for _, variant := range []string{"nft", "legacy"} {
			for _, suffix := range []string{"", "-save", "-restore"} {
				t = append(t, entry{name: "usr/sbin/" + command + "-" + variant + suffix, link: "xtables-" + variant + "-multi"})
			}
		}
	}
	return t, nil
}
