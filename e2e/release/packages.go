package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"github.com/goreleaser/nfpm/v2"
	_ "github.com/goreleaser/nfpm/v2/deb" // registers the format
	"github.com/goreleaser/nfpm/v2/files"
	_ "github.com/goreleaser/nfpm/v2/rpm" // registers the format
)

// packages builds a deb and an rpm for each supported platform, for hosts without Kubernetes.
func (b *build) packages() error {
	for _, p := range platforms {
		if !p.supported() {
			continue
		}
		for _, format := range []string{"deb", "rpm"} {
			if err := b.pack(p, format, b.file("-linux-"+p.String()+"."+format)); err != nil {
				return fmt.Errorf("%s: %w", format, err)
			}
		}
	}
	return nil
}

func (b *build) pack(p platform, format, file string) error {
	packager, err := nfpm.Get(format)
	if err != nil {
		return err
	}
	contents, err := b.contents(p)
	if err != nil {
		return err
	}
	script := func(name string) string { return filepath.Join(b.checkout, "e2e/release/package", name) }
	info := nfpm.WithDefaults(&nfpm.Info{
		Name: "kube-ipvs", Arch: p.arch, Platform: "linux", Version: b.version, Release: "1", Section: "net", Priority: "optional",
		Maintainer:  "The kube-ipvs authors <kube-ipvs@users.noreply.github.com>",
		Description: "Kubernetes Services with the kernel's IP Virtual Server\nThe agent serves Services from a directory of manifests on a host without Kubernetes.",
		Homepage:    "https://github.com/kube-ipvs/kube-ipvs", License: "Apache-2.0", MTime: b.when, DisableGlobbing: true,
		Overridables: nfpm.Overridables{
			Depends:  []string{"iptables"},
			Contents: contents,
			Scripts: nfpm.Scripts{
				PostInstall: script("postinstall.sh"), PreRemove: script("preremove.sh"), PostRemove: script("postremove.sh"),
			},
			RPM: nfpm.RPM{BuildHost: "localhost", Summary: "Kubernetes Services with the kernel's IP Virtual Server"},
		},
	})
	if err := nfpm.PrepareForPackager(info, format); err != nil {
		return err
	}
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	defer out.Close()
	if err := packager.Package(info, out); err != nil {
		return err
	}
	return out.Close()
}

func (b *build) contents(p platform) (files.Contents, error) {
	at := func(name string) string { return filepath.Join(b.checkout, name) }
	file := func(source, destination string, mode os.FileMode) *files.Content {
		return &files.Content{Source: source, Destination: destination, FileInfo: &files.ContentFileInfo{Mode: mode, MTime: b.when}}
	}
	all := files.Contents{
		file(b.program(p), "/usr/bin/kube-ipvs", 0o755),
		file(at("e2e/release/package/kube-ipvs.service"), "/usr/lib/systemd/system/kube-ipvs.service", 0o644),
		file(at("e2e/release/package/tmpfiles.conf"), "/usr/lib/tmpfiles.d/kube-ipvs.conf", 0o644),
		file(at("LICENSE"), "/usr/share/doc/kube-ipvs/copyright", 0o644),
		{
			Source: at("e2e/release/package/config.yaml"), Destination: "/etc/kube-ipvs/config.yaml", Type: files.TypeConfigNoReplace,
			FileInfo: &files.ContentFileInfo{Mode: 0o644, MTime: b.when},
		},
		{Destination: "/etc/kube-ipvs/manifests", Type: files.TypeDir, FileInfo: &files.ContentFileInfo{Mode: 0o755, MTime: b.when}},
	}
	pages, err := filepath.Glob(at("docs/cli/man/*.1"))
	if err != nil {
		return nil, err
	}
	for _, page := range pages {
		all = append(all, file(page, "/usr/share/man/man1/"+filepath.Base(page), 0o644))
	}
	return all, nil
}

// packagesOnly builds the deb and the rpm of a checkout for this machine's architecture.
func packagesOnly(checkout, out string) error {
	chart, err := chartVersion(checkout)
	if err != nil {
		return err
	}
	b, err := newBuild(checkout, out, "v"+chart+"-dev", "")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	if b.work, err = os.MkdirTemp("", "kube-ipvs-release-"); err != nil {
		return err
	}
	defer os.RemoveAll(b.work)
	p := platform{arch: runtime.GOARCH}
	if err := b.buildProgram(p); err != nil {
		return err
	}
	for _, format := range []string{"deb", "rpm"} {
		if err := b.pack(p, format, filepath.Join(out, "kube-ipvs."+format)); err != nil {
			return err
		}
	}
	return nil
}
