package main

import (
	"cmp"
	"debug/buildinfo"
	"net/url"
	"os"
	"runtime/debug"
	"strings"

	cdx "github.com/CycloneDX/cyclonedx-go"
)

// sbom lists the modules in a program, from its build info, and the Debian packages in its image.
func (b *build) sbom(p platform, name string, debs []deb, file string) error {
	info, err := buildinfo.ReadFile(b.program(p))
	if err != nil {
		return err
	}
	if err := b.materials.modules(info); err != nil {
		return err
	}
	main := info.Main.Path
	bom := cdx.NewBOM()
	bom.Metadata = &cdx.Metadata{
		Timestamp: b.when.Format("2006-01-02T15:04:05Z"),
		Component: &cdx.Component{
			BOMRef: main, Type: cdx.ComponentTypeApplication, Name: name, Version: b.version, PackageURL: golang(main, b.version),
			Licenses: &cdx.Licenses{{License: &cdx.License{ID: "Apache-2.0"}}},
		},
	}
	components := []cdx.Component{library("std", strings.TrimPrefix(info.GoVersion, "go"))}
	for _, module := range info.Deps {
		used := replaced(module)
		components = append(components, library(used.Path, used.Version))
	}
	for _, d := range debs {
		reference := "pkg:deb/debian/" + d.name + "@" + url.QueryEscape(d.version) + "?arch=" + d.architecture
		b.materials.add(reference, map[string]string{"sha256": d.checksum})
		components = append(components, cdx.Component{
			BOMRef: reference, Type: cdx.ComponentTypeLibrary, Name: d.name, Version: d.version, PackageURL: reference,
		})
	}
	bom.Components = &components
	bom.Dependencies = dependencies(main, components)
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	defer out.Close()
	if err := cdx.NewBOMEncoder(out, cdx.BOMFileFormatJSON).SetPretty(true).Encode(bom); err != nil {
		return err
	}
	return out.Close()
}

func replaced(module *debug.Module) *debug.Module { return cmp.Or(module.Replace, module) }

func golang(module, version string) string {
	return "pkg:golang/" + module + "@" + url.QueryEscape(version)
}

func library(module, version string) cdx.Component {
	reference := golang(module, version)
	return cdx.Component{BOMRef: reference, Type: cdx.ComponentTypeLibrary, Name: module, Version: version, PackageURL: reference}
}

// The build info does not record dependencies between components, so the program depends on all of them.
func dependencies(main string, components []cdx.Component) *[]cdx.Dependency {
	var references []string
	for _, c := range components {
		references = append(references, c.BOMRef)
	}
	return &[]cdx.Dependency{{Ref: main, Dependencies: &references}}
}
