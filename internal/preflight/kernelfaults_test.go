package preflight

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
)

const (
	debian = "Linux version 6.1.0-41-amd64 (debian-kernel@lists.debian.org) (gcc-12 (Debian 12.2.0-14+deb12u1) 12.2.0) #1 SMP PREEMPT_DYNAMIC Debian "
	delay  = "one second"
	route  = "CVE-2025-68813"

	conntrack = "CVE-2025-38472"
	addition  = "CVE-2026-43086"
)

func TestKernelFaults(t *testing.T) {
	for name, c := range map[string]struct {
		k                       kernelVersion
		known, fixed, unchecked []string
		severity                finding.Severity
	}{
		"before the fix of a series": {k: kernelVersion{release: "5.4.58"}, known: []string{delay, route}, severity: finding.Warning},
		"the fix of a series":        {k: kernelVersion{release: "5.4.59"}, known: []string{route}, fixed: []string{delay}, severity: finding.Warning},
		"a series without the fix":   {k: kernelVersion{release: "5.3.18"}, known: []string{delay, route}, severity: finding.Warning},
		"before the fault":           {k: kernelVersion{release: "4.20.1"}, known: []string{delay}, fixed: []string{route}, severity: finding.Warning},
		"only unlikely faults":       {k: kernelVersion{release: "6.12.80"}, known: []string{"CVE-2026-53270"}, fixed: []string{delay, route}, severity: finding.Notice},
		"Amazon":                     {k: kernelVersion{release: "6.1.159-178.288.amzn2023.x86_64"}, known: []string{route}, severity: finding.Warning},
		"Debian before the fix":      {k: kernelVersion{release: "6.1.0-41-amd64", banner: debian + "6.1.158-1 (2025-11-09)"}, known: []string{route}, severity: finding.Warning},
		"Debian with the fix":        {k: kernelVersion{release: "6.1.0-50-amd64", banner: debian + "6.1.176-1 (2026-07-09)"}, fixed: []string{route, "CVE"}},
		"Debian without a banner":    {k: kernelVersion{release: "6.1.0-41-amd64"}, unchecked: []string{route}, fixed: []string{delay}},
		"Ubuntu": {k: kernelVersion{release: "5.15.0-91-generic", signature: "Ubuntu 5.15.0-91.101-generic 5.15.131\n"},
			unchecked: []string{route}, fixed: []string{delay}},
		"Ubuntu that merged the fix": {k: kernelVersion{release: "5.15.0-190-generic", signature: "Ubuntu 5.15.0-190.200-generic 5.15.210\n"},
			fixed: []string{route, "CVE-2026-53270"}},
		"Ubuntu 20.04": {k: kernelVersion{release: "5.4.0-150-generic", signature: "Ubuntu 5.4.0-150.167-generic 5.4.233\n"},
			unchecked: []string{route}, fixed: []string{delay}},
		"RHEL 8": {k: kernelVersion{release: "4.18.0-553.el8_10.x86_64"}, unchecked: []string{delay, route}, fixed: []string{conntrack, addition}},
		"RHEL 9 before a fix": {k: kernelVersion{release: "5.14.0-570.46.1.el9_6.x86_64"}, known: []string{conntrack}, unchecked: []string{route},
			fixed: []string{delay, addition}, severity: finding.Warning},
		"RHEL 9":                {k: kernelVersion{release: "5.14.0-570.49.1.el9_6.x86_64"}, unchecked: []string{route}, fixed: []string{delay, conntrack, addition}},
		"RHEL 10":               {k: kernelVersion{release: "6.12.0-55.30.1.el10_0.x86_64"}, unchecked: []string{route, addition}, fixed: []string{conntrack}},
		"another minor release": {k: kernelVersion{release: "6.12.0-124.8.1.el10_1.x86_64"}, unchecked: []string{conntrack}},
		"SUSE before the fix": {k: kernelVersion{release: "5.14.21-150500.55.133-default"}, known: []string{route}, unchecked: []string{"CVE-2026-53270"},
			severity: finding.Warning},
		"SUSE with the fix":             {k: kernelVersion{release: "6.4.0-150600.23.87-default"}, unchecked: []string{"CVE-2026-53270"}, fixed: []string{route}},
		"newer than the mainline's fix": {k: kernelVersion{release: "7.2.13-lab"}, fixed: []string{""}},
		"unknown":                       {unchecked: []string{delay, route}},
	} {
		var known, unchecked string
		for _, f := range kernelFaults(c.k, true, true) {
			if strings.Contains(f.Problem, "not checked") {
				unchecked = f.String()
				continue
			}
			if known = f.String(); f.Severity != c.severity {
				t.Errorf("%s: got severity %s, want %s", name, f.Severity, c.severity)
			}
		}
		if lacks(known, c.known) || lacks(unchecked, c.unchecked) {
			t.Errorf("%s: got known faults %q and unchecked faults %q", name, known, unchecked)
		}
		for _, text := range c.fixed {
			if strings.Contains(known+unchecked, text) && (text != "" || known+unchecked != "") {
				t.Errorf("%s: %q is fixed, but was reported; known faults %q, unchecked faults %q", name, text, known, unchecked)
			}
		}
	}
}

func lacks(text string, parts []string) bool {
	return slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(text, part) }) || parts != nil && text == ""
}

func TestFaultsOfParts(t *testing.T) {
	k := kernelVersion{release: "6.1.100"}
	for _, part := range []struct {
		ipvs, ipv6 bool
		lacks      string
	}{{false, true, route}, {true, false, "IPv6"}} {
		if text := kernelFaults(k, part.ipvs, part.ipv6)[0].String(); strings.Contains(text, part.lacks) || !strings.Contains(text, "CVE-2025-38472") {
			t.Error(text)
		}
	}
}

func ifFrom(version string) string {
	if version == "" {
		return ""
	}
	return "; since " + version
}

// Each fault names its source, and lists its fixed versions in ascending order. The documentation contains the same
// table.
func TestFaultsAreComplete(t *testing.T) {
	page, err := os.ReadFile("../../docs/kernel-support.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range faults {
		last := numbers(f.fixed[len(f.fixed)-1])
		if f.source == "" || f.effect == "" || f.severity == "" || len(last) != 2 {
			t.Errorf("%+v", f)
		}
		if !slices.IsSortedFunc(f.fixed, func(a, b string) int { return slices.Compare(numbers(a), numbers(b)) }) {
			t.Errorf("%s: %v are not sorted", f.source, f.fixed)
		}
		row := "| " + f.effect + ifFrom(f.from) + " | " + f.source + " | " + strings.TrimPrefix(f.fixes(), "fixed in ") + " |\n"
		if !strings.Contains(string(page), row) {
			t.Errorf("docs/kernel-support.md lacks the row %s", row)
		}
		for _, b := range f.backports {
			if !strings.HasPrefix(b.release, b.prefix) || b.source == "" {
				t.Errorf("%s: %+v", f.source, b)
			}
		}
	}
}
