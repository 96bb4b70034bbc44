package preflight

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
)

type fault struct {
	// source is the report or commit that describes the fault and names the versions.
	effect, source string
	severity       finding.Severity
	// from is the first upstream version with the fault; empty if all versions before the fix have it.
	from string
	// fixed are the first upstream versions with the fix: one for each stable series, and then the mainline version.
	fixed []string
	// backports are distribution kernels that have the fix although their upstream version is older.
	backports []backport
	// never are distribution kernels without the fault: the distribution did not backport the change that caused it.
	never []distribution
	// ipvs is true if the fault is in IPVS. ipv6 is true if it affects only IPv6.
	ipvs, ipv6 bool
}

// backport is the first release of a distribution's kernel with a fix. It applies to releases with the same prefix.
type backport struct{ prefix, release, source string }

// distribution is a distribution whose kernel releases have a prefix.
type distribution struct{ prefix, name string }

var (
	rhel8 = distribution{"4.18.0-", "RHEL 8"}
	rhel9 = distribution{"5.14.0-", "RHEL 9"}
)

// The versions for a CVE come from its record, which the kernel developers maintain
// (https://git.kernel.org/pub/scm/linux/security/vulns.git, cve/published). The releases of RHEL come from Red Hat's
// records and advisories (https://github.com/aquasecurity/vuln-list-redhat, https://github.com/AlmaLinux/osv-database).
// Faults with severity warning can occur in normal operation.
var faults = []fault{
	{
		effect: "a new connection from a recently used port is delayed by one second", severity: finding.Warning, ipvs: true,
		source: "commit f0a5e4d7a594, and the announcements of these stable releases", fixed: []string{"4.19.140", "5.4.59", "5.8.2", "5.9"},
	},
	{
		effect: "a client that reuses a port can be sent to a deleted endpoint", severity: finding.Notice, ipvs: true,
		source: "kubernetes/kubernetes#93297", fixed: []string{"5.9"},
	},
	{
		effect: "a packet to an endpoint without a route can crash the node", severity: finding.Warning, ipvs: true,
		source: "CVE-2025-68813", from: "5.1", fixed: []string{"5.10.248", "5.15.198", "6.1.160", "6.6.120", "6.12.64", "6.18.3", "6.19"},
		backports: []backport{
			{"5.14.21-150500.", "5.14.21-150500.55.136", "SUSE-SU-2026:0474-1"}, {"6.4.0-150600.", "6.4.0-150600.23.87", "SUSE-SU-2026:0471-1"},
		},
	},
	{
		effect: "removing a conntrack entry can crash the node", severity: finding.Warning,
		source: "CVE-2025-38472", from: "5.19", fixed: []string{"6.1.147", "6.6.100", "6.12.40", "6.15.8", "6.16"},
		backports: []backport{{"5.14.0-570.", "5.14.0-570.49.1", "RHSA-2025:16880"}, {"6.12.0-55.", "6.12.0-55.30.1", "RHSA-2025:15005"}},
		never:     []distribution{rhel8},
	},
	{
		effect: "changing the scheduler of a Service while it receives packets can crash the node", severity: finding.Notice, ipvs: true,
		source: "CVE-2026-53270", from: "4.2", fixed: []string{"5.10.259", "5.15.210", "6.1.176", "6.6.143", "6.12.94", "6.18.36", "7.0.13", "7.1"},
	},
	{
		effect: "creating a virtual server can crash the node if memory is low", severity: finding.Notice, ipvs: true,
		source: "CVE-2026-43086", from: "6.2", fixed: []string{"6.6.136", "6.12.83", "6.18.24", "6.19.14", "7.0"},
		never: []distribution{rhel8, rhel9},
	},
	{
		effect: "IPv6 packets with extension headers fail checksum verification", severity: finding.Notice, ipvs: true, ipv6: true,
		source: "CVE-2026-45850", fixed: []string{"5.10.259", "5.15.210", "6.1.176", "6.6.143", "6.12.94", "6.18.36", "6.19.4", "7.0"},
	},
}

type kernelVersion struct {
	release string // uname -r
	// banner is the content of /proc/version. signature is the content of /proc/version_signature, which exists only on
	// Ubuntu.
	banner, signature string
}

var (
	debianVersion = regexp.MustCompile(`Debian (\d+\.\d+\.\d+)`)
	// These distributions backport fixes but keep the version number of the release that they started from.
	vendorRelease = regexp.MustCompile(`^\d+\.\d+\.0-\d|-1\d{5}\.`)
)

// upstream returns the upstream version of the kernel; nil if it is unknown. If exact is false, the kernel also has
// later fixes.
func (k kernelVersion) upstream() (version []int, exact bool) {
	_, build, _ := strings.Cut(k.banner, " #") // the text before it contains the compiler's version
	if m := debianVersion.FindStringSubmatch(build); m != nil {
		return numbers(m[1]), true
	}
	if words := strings.Fields(k.signature); len(words) == 3 && words[0] == "Ubuntu" {
		return numbers(words[2]), false
	}
	text, _, _ := strings.Cut(k.release, "-")
	version = numbers(text)
	if len(version) < 2 {
		return nil, false
	}
	return version, !vendorRelease.MatchString(k.release)
}

func numbers(version string) (all []int) {
	for _, text := range strings.FieldsFunc(version, func(c rune) bool { return c < '0' || c > '9' }) {
		n, err := strconv.Atoi(text)
		if err != nil {
			return all
		}
		all = append(all, n)
	}
	return all
}

type faultState int

const (
	absentFault faultState = iota
	presentFault
	unknownFault
)

func (f fault) in(k kernelVersion) faultState {
	if slices.ContainsFunc(f.never, func(d distribution) bool { return strings.HasPrefix(k.release, d.prefix) }) {
		return absentFault
	}
	for _, b := range f.backports {
		if strings.HasPrefix(k.release, b.prefix) {
			if slices.Compare(numbers(k.release), numbers(b.release)) >= 0 {
				return absentFault
			}
			return presentFault
		}
	}
	version, exact := k.upstream()
	if version == nil {
		return unknownFault
	}
	if exact && slices.Compare(version, numbers(f.from)) < 0 || slices.Compare(version, numbers(f.fixed[len(f.fixed)-1])) >= 0 {
		return absentFault
	}
	for _, fixed := range f.fixed {
		if at := numbers(fixed); slices.Equal(at[:2], version[:2]) && slices.Compare(version, at) >= 0 {
			return absentFault
		}
	}
	if exact {
		return presentFault
	}
	return unknownFault
}

func (f fault) fixes() string {
	all := fmt.Sprintf("fixed in %s", strings.Join(f.fixed, ", "))
	for _, b := range f.backports {
		all += fmt.Sprintf(", %s (%s)", b.release, b.source)
	}
	for i, d := range f.never {
		all += []string{"; never in ", ", "}[min(i, 1)] + d.name
	}
	return all
}

// kernelFaults reports the known faults of the running kernel, and the faults that its version neither confirms nor
// rules out.
func kernelFaults(k kernelVersion, ipvs, ipv6 bool) []finding.Finding {
	severity := finding.Notice
	var known, unknown []string
	for _, f := range faults {
		if f.ipvs && !ipvs || f.ipv6 && !ipv6 {
			continue
		}
		switch f.in(k) {
		case presentFault:
			known = append(known, fmt.Sprintf("%s (%s; %s)", f.effect, f.source, f.fixes()))
			if f.severity == finding.Warning {
				severity = finding.Warning
			}
		case unknownFault:
			unknown = append(unknown, fmt.Sprintf("%s (%s)", f.effect, f.source))
		}
	}
	var found []finding.Finding
	if len(known) > 0 {
		found = append(found, finding.New(severity, "kernel "+k.release, "has known faults", known,
			"use a kernel with the fixes; the evidence lists the first fixed version of each series"))
	}
	if len(unknown) > 0 {
		found = append(found, finding.New(finding.Notice, "kernel "+k.release, "known faults are not checked: this kernel's version does not show which fixes it has", unknown,
			"search the distribution's advisories for them, and keep the kernel up to date"))
	}
	return found
}
