package main

import (
	"slices"
	"strings"
	"testing"
)

const changelog = `# Changelog

## [Unreleased]

### Added

- A thing that is
  not released.

## [0.2.0] - 2026-02-01

### Added

- One ([decision 2](docs/decisions/0002-libraries.md)).

### Fixed

- Two.

## [0.1.0] - 2026-01-01

### Added

- Everything.

[Unreleased]: https://example.org/compare/v0.2.0...main
[0.1.0]: https://example.org/v0.1.0
`

func TestChanges(t *testing.T) {
	for version, want := range map[string][]change{
		"v0.2.0":      {{"added", "One ([decision 2](docs/decisions/0002-libraries.md))."}, {"fixed", "Two."}},
		"v0.1.0":      {{"added", "Everything."}},
		"v0.3.0-rc.1": {{"added", "A thing that is not released."}},
		"v0.1.0-rc.1": {{"added", "Everything."}},
	} {
		got, err := changesOf(changelog, version)
		if err != nil || !slices.Equal(got.items, want) {
			t.Errorf("%s: %v, %v; want %v", version, got.items, err, want)
		}
		if strings.Contains(got.text, "example.org") || strings.Contains(got.text, "## [") {
			t.Errorf("%s has another section's text:\n%s", version, got.text)
		}
	}
	for text, want := range map[string]string{changelog: "rename [Unreleased] to [0.3.0]", "## [0.3.0]\n\n## [0.2.0]\n": "is empty"} {
		if _, err := changesOf(text, "v0.3.0"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v; want %q", err, want)
		}
	}
}

func TestVersion(t *testing.T) {
	const clean = "0123456789abcdef0123456789abcdef01234567"
	for _, c := range []struct{ version, commit, problem string }{
		{"v0.1.0", clean, ""},
		{"v0.1.0-rc.1", clean + "-dirty", ""},
		{"v0.1.0", clean + "-dirty", "uncommitted changes"},
		{"v0.2.0", clean, "make golden"},
		{"0.1.0", clean, "use vMAJOR"},
		{"v0.1", clean, "use vMAJOR"},
		{"v0.1.0-rc/../1", clean, "use vMAJOR"},
		{"", clean, "use vMAJOR"},
	} {
		err := checkVersion(c.version, "0.1.0", c.commit)
		if c.problem == "" && err != nil || c.problem != "" && (err == nil || !strings.Contains(err.Error(), c.problem)) {
			t.Errorf("%q at %s: %v; want %q", c.version, c.commit, err, c.problem)
		}
	}
}
