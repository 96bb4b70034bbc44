package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
)

// section is one version's section of the changelog.
type section struct {
	text  string // without the heading
	items []change
}

// change is an item of a section. kind is the heading above the item, in lower case.
type change struct{ kind, text string }

var (
	versionHeading = regexp.MustCompile(`(?m)^## \[([^]]+)\].*\n`)
	references     = regexp.MustCompile(`(?m)^\[[^]]+\]: .*\n`)
	kindHeading    = regexp.MustCompile(`^### (\w+)$`)
)

// changesOf returns a version's section of the changelog. For a pre-release, this is the section of its release. If the changelog has no such section
// yet, changesOf returns the unreleased changes.
func changesOf(changelog, version string) (section, error) {
	wanted, _, _ := strings.Cut(strings.TrimPrefix(version, "v"), "-")
	if preRelease(version) && !strings.Contains(changelog, "\n## ["+wanted+"]") {
		wanted = "Unreleased"
	}
	headings := versionHeading.FindAllStringSubmatchIndex(changelog, -1)
	for i, h := range headings {
		if changelog[h[2]:h[3]] != wanted {
			continue
		}
		end := len(changelog)
		if i+1 < len(headings) {
			end = headings[i+1][0]
		}
		text := strings.TrimSpace(references.ReplaceAllString(changelog[h[1]:end], ""))
		if text == "" {
			return section{}, fmt.Errorf("CHANGELOG.md: the section [%s] is empty", wanted)
		}
		return section{text, items(text)}, nil
	}
	return section{}, fmt.Errorf("CHANGELOG.md has no section [%s]; rename [Unreleased] to [%s] and add the date", wanted, wanted)
}

func items(text string) []change {
	var all []change
	kind := ""
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		if heading := kindHeading.FindStringSubmatch(line); heading != nil {
			kind = strings.ToLower(heading[1])
		} else if item, ok := strings.CutPrefix(line, "- "); ok && kind != "" {
			all = append(all, change{kind, item})
		} else if more, ok := strings.CutPrefix(line, "  "); ok && len(all) > 0 {
			all[len(all)-1].text += " " + more
		}
	}
	return all
}

// relative matches relative links, which work only in the repository.
var relative = regexp.MustCompile(`\]\(((?:docs|charts)/[^)]*|[A-Z]+\.md)\)`)

func (b *build) notes() error {
	text := relative.ReplaceAllString(b.changes.text, "](https://github.com/kube-ipvs/kube-ipvs/blob/"+b.version+"/$1)")
	if b.image != "" {
		text += fmt.Sprintf("\n\nImage: `%s:%s`", b.image, b.version)
	}
	text += "\n\nTo verify a download, see [releases](https://github.com/kube-ipvs/kube-ipvs/blob/" + b.version + "/docs/release.md).\n"
	return os.WriteFile(b.file("-notes.md"), []byte(text), 0o644)
}
