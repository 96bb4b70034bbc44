package doctor

import (
	"slices"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// TestAnotherProxyOnOurPort: without an agent, a response on its port comes from another proxy.
func TestAnotherProxyOnOurPort(t *testing.T) {
	n := well()
	n.View, n.Silence = nil, "no agent responds"
	n.answers["http://127.0.0.1:10249/proxyMode"] = Answer{Status: 200, Body: "iptables"}
	n.Read(n)
	report := Examine(n.Facts)
	if len(report.Findings) != 2 || !strings.Contains(strings.Join(report.Findings[1].Evidence, ""), `answers "iptables"`) {
		t.Errorf("%+v", report.Findings)
	}
}

// TestInAContainer: without the host's files, doctor lists the checks that it could not make.
func TestInAContainer(t *testing.T) {
	n := well()
	delete(n.files, "/etc/os-release")
	delete(n.files, "/etc/modules-load.d/k8s.conf")
	n.files["/proc/1/comm"] = "kube-ipvs\n"
	n.Read(n)
	report := Examine(n.Facts)
	slices.Sort(report.Unchecked)
	if report.Verdict != Well || len(report.Findings) > 0 || len(report.Unchecked) != 2 || !strings.Contains(report.Unchecked[0], "modules loaded at boot") ||
		!strings.Contains(report.Unchecked[1], "processes") {
		t.Errorf("%+v", report)
	}
}

// TestNeeds: the needs of a node follow its agent's settings, not the defaults.
func TestNeeds(t *testing.T) {
	n := well()
	n.set("ipvs.scheduler", "mh")
	n.View.Node.Families = []string{"IPv6"}
	needs := n.Needs()
	if needs.DataPlane != kernel.DataPlaneIPVS {
		t.Errorf("data plane %s", needs.DataPlane)
	}
	n.View.Node.Mode = kernel.NFTablesOnly
	if plane := n.Needs().DataPlane; plane != kernel.DataPlaneNFTables {
		t.Errorf("data plane %s", plane)
	}
	if !slices.Equal(needs.Schedulers, []string{"rr", "mh"}) || !slices.Equal(needs.Families, []inet.Family{inet.IPv6}) || needs.Objects != nil {
		t.Errorf("%+v", needs)
	}
}

// TestModeWithoutAgent: without an agent, the mode that the next one would choose decides what is examined.
func TestModeWithoutAgent(t *testing.T) {
	for mode, examined := range map[kernel.Mode]bool{kernel.IPVSWithIPTables: true, kernel.IPVSWithNFTables: true, kernel.NFTablesOnly: false} {
		n := well()
		n.View, n.Silence, n.Mode = nil, "no agent responds", mode
		n.files["/proc/sys/"+keepalive] = "7200\n"
		n.Read(n)
		about := slices.ContainsFunc(Examine(n.Facts).Findings, func(f finding.Finding) bool { return strings.Contains(f.Problem, "IPVS forgets") })
		if about != examined {
			t.Errorf("%s: IPVS's timeouts examined: %t", mode, about)
		}
	}
}
