package main

import (
	"strings"
	"testing"
)

func TestInstallAdvice(t *testing.T) {
	advice := installAdvice([]program{{"a", "a.deb", "a.fedora", "a.arch"}, {"/sbin/b", "b.deb", "b.fedora", "b.arch"}, {"c", "a.deb", "c.fedora", "a.arch"}})
	for _, want := range []string{"not found: a, b, c.", "apt-get install a.deb b.deb\n", "dnf install a.fedora b.fedora c.fedora\n", "pacman -S a.arch b.arch"} {
		if !strings.Contains(advice, want) {
			t.Errorf("no %q in %s", want, advice)
		}
	}
}

func TestProgramsOf(t *testing.T) {
	for _, group := range []string{"lab", "qemu", "uml", "nodes"} {
		if len(programsOf(group)) < 3 {
			t.Errorf("group %s: %v", group, programsOf(group))
		}
	}
	if got, want := len(programsOf("lab", "qemu")), len(programsOf("lab"))+len(programsOf("qemu")); got != want {
		t.Errorf("two groups have %d programs, want %d", got, want)
	}
}

func TestInstalled(t *testing.T) {
	for name, want := range map[string]bool{"sh": true, "no-such-program": false, "/etc/passwd": true, "/etc/no-such-file": false} {
		if got := (program{name: name}).installed(); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}
