package doctor

import (
	"slices"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// TestAnotherProxyOnOurPort: if no agent is running, a response from the agent's port comes from another proxy.
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

// TestInAContainer: if the host's files are not visible, doctor lists the checks that it skipped.
func TestInAContainer(t *testing.T) {
	n := well()
	delete(n.files, "/etc/os-release")
	delete(n.files, "/etc/modules-load.d/k8s.conf")
	n.files["/proc/1/comm"] = "kube-ipvs\n"
	n.Read(n)
	report := Examine(n.Facts)
	for _, subject := range []string{"modules loaded at boot", "processes of other proxies", pinned, managers, denials} {
		if !slices.ContainsFunc(report.Unchecked, func(u string) bool { return strings.HasPrefix(u, subject+": ") }) {
			t.Errorf("unchecked subjects %q do not include %s", report.Unchecked, subject)
		}
	}
	if report.Verdict != finding.Well || len(report.Findings) > 0 || len(report.Unchecked) != 5 {
		t.Errorf("%+v", report)
	}
}

// TestTunnelsWithoutMTU: doctor does not report tunnels if the pods' routes limit the packet size, because it cannot
// read those routes. Examples are cilium_vxlan with MTU 1500 and the tunnels of Open vSwitch.
func TestTunnelsWithoutMTU(t *testing.T) {
	for _, i := range []kernel.Interface{
		{Name: "cilium_vxlan", Kind: "vxlan", MTU: 1500, Up: true, PerPacket: true}, {Name: "genev_sys_6081", Kind: "geneve", MTU: 65000, Up: true, PerPacket: true},
	} {
		n := well()
		n.link(i)
		n.link(kernel.Interface{Name: "lxc1", Kind: "veth", MTU: 1500, Up: true, Container: true})
		n.Read(n)
		if report := Examine(n.Facts); len(report.Findings) > 0 || len(report.Unchecked) != 1 || !strings.HasPrefix(report.Unchecked[0], "MTU of pods: ") {
			t.Errorf("%s: %+v", i.Name, report)
		}
	}
}

// TestUnreadableContent: if a file lacks the expected content, doctor reports the subject as unchecked.
func TestUnreadableContent(t *testing.T) {
	for file, content := range map[string]string{"/proc/meminfo": "x", "/proc/sys/" + localPorts: "a b", serviceAccount + "ca.crt": "x", "/proc/net/route": "x"} {
		n := well()
		n.files[file] = content
		n.Read(n)
		if unchecked := Examine(n.Facts).Unchecked; len(unchecked) != 1 {
			t.Errorf("%s: %q", file, unchecked)
		}
	}
}

// TestOpaqueCredentials: doctor reports a credential as unchecked if its expiry is unreadable, unless it never expires.
func TestOpaqueCredentials(t *testing.T) {
	for name, c := range map[string]struct{ cluster, user, want string }{
		"exec":          {"server: https://192.0.2.10:6443", "exec: {command: aws}", "token: an external program provides it"},
		"broken token":  {"server: https://192.0.2.10:6443", "token: a.b.c", "token in /etc/kubeconfig: "},
		"opaque token":  {"server: https://192.0.2.10:6443", "token: 0123456789abcdef", ""},
		"no server":     {"server: https://192.0.2.77:6443", "token: abc", serverChecked + ": dial 192.0.2.77:6443"},
		"no encryption": {"server: http://192.0.2.10:8080", "token: abc", ""},
		"no CA":         {"{server: 'https://192.0.2.10:6443', certificate-authority-data: ''}", "token: abc", ""},
		"empty CA": {"{server: 'https://192.0.2.10:6443', certificate-authority-data: eA==}", "token: abc",
			"certificate /etc/kubeconfig (certificate-authority-data): it has no certificate"},
		"other context": {"server: x}\nclusters: [", "token: abc", credentials + ": kubeconfig /etc/kubeconfig"},
	} {
		n := well()
		n.kubeconfig(c.cluster, c.user)
		n.Read(n)
		got := strings.Join(Examine(n.Facts).Unchecked, "\n")
		if !strings.HasPrefix(got, c.want) || (got == "") != (c.want == "") {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestNeeds: the kernel requirements depend on the agent's settings, not on the defaults.
func TestNeeds(t *testing.T) {
	n := well()
	n.set("ipvs.scheduler", "mh")
	n.View.Node.Families = []string{"IPv6"}
	needs := n.Needs()
	if needs.DataPlane != kernel.DataPlaneIPVS {
		t.Errorf("data plane is %s, want IPVS", needs.DataPlane)
	}
	n.View.Node.Mode = kernel.NFTablesOnly
	if plane := n.Needs().DataPlane; plane != kernel.DataPlaneNFTables {
		t.Errorf("data plane is %s, want nftables", plane)
	}
	if !slices.Equal(needs.Schedulers, []string{"rr", "mh"}) || !slices.Equal(needs.Families, []inet.Family{inet.IPv6}) || needs.Objects != nil {
		t.Errorf("%+v", needs)
	}
}

// TestModeWithoutAgent: if no agent is running, the checks depend on the mode that an agent would choose if it started now.
func TestModeWithoutAgent(t *testing.T) {
	for mode, examined := range map[kernel.Mode]bool{kernel.IPVSWithIPTables: true, kernel.IPVSWithNFTables: true, kernel.NFTablesOnly: false} {
		n := well()
		n.View, n.Silence, n.Mode = nil, "no agent responds", mode
		n.files["/proc/sys/"+keepalive] = "7200\n"
		n.Read(n)
		about := slices.ContainsFunc(Examine(n.Facts).Findings, func(f finding.Finding) bool { return strings.Contains(f.Problem, "IPVS forgets") })
		if about != examined {
			t.Errorf("%s: doctor examined IPVS's timeouts: %t", mode, about)
		}
	}
}

// TestSilentAgentOnOurPort: an agent whose socket does not respond, but whose metrics server does, is not another proxy.
func TestSilentAgentOnOurPort(t *testing.T) {
	n := well()
	n.View, n.Silence = nil, "no agent responds"
	n.answers[kubeProxyMode] = Answer{Status: 200, Body: "ipvs"}
	n.answers[agentSettings] = Answer{Status: 200, Body: `{"config.kube-ipvs.io": {`}
	n.Read(n)
	if report := Examine(n.Facts); len(report.Findings) != 1 || report.Findings[0].Subject == "other proxy" {
		t.Errorf("%+v", report.Findings)
	}
}
