package preflight

import (
	"context"
	"errors"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

func TestCheckFindsNothing(t *testing.T) {
	labtest.NetNS(t)
	found := Check(context.Background(), Needs{
		Schedulers: []string{"rr", "wrr", "lc", "sh", "mh"},
		Families:   inet.Families,
		Objects: func(kernel.Mode) Objects {
			return Objects{Sysctls: []kernel.SysctlSetting{{Name: "net/ipv4/vs/conntrack", Value: "1"}}}
		},
	})
	for _, f := range found.Findings {
		t.Errorf("finding: %s", f)
	}
	if found.NoRules != nil || found.Mode.NFTablesBalances() || !slices.Equal(found.Families, inet.Families) {
		t.Errorf("data plane %s, rules in %s for %v (%v)", found.DataPlane(), found.Rules(), found.Families, found.NoRules)
	}
	leavesNoTrace(t)
}

func TestCheckNamesMissingScheduler(t *testing.T) {
	labtest.NetNS(t)
	got := Check(context.Background(), Needs{Schedulers: []string{"rr", "nosuch"}}).Findings
	if len(got) != 1 || !strings.Contains(got[0].String(), "ip_vs_nosuch") || got[0].Severity != finding.Warning {
		t.Errorf("findings: %v, want one warning about ip_vs_nosuch", got)
	}
	leavesNoTrace(t)
}

func leavesNoTrace(t *testing.T) {
	t.Helper()
	links, err := netlink.LinkList()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if l.Type() == "dummy" {
			t.Errorf("interface %s is left", l.Attrs().Name)
		}
	}
	out, err := exec.Command("ipvsadm", "-Sn").Output()
	if err != nil || len(out) > 0 {
		t.Errorf("ipvsadm -Sn: %v\n%s", err, out)
	}
}

func TestProbesOfNetfilter(t *testing.T) {
	labtest.NetNSNoIPVS(t)
	ctx := context.Background()
	for typ, err := range probeSetTypes(ctx) {
		if err != nil {
			t.Errorf("set type %s: %v", typ, err)
		}
	}
	for e, err := range probeExtensions(ctx) {
		if err != nil {
			t.Errorf("extension %s: %v", e.name, err)
		}
	}
	if _, err := exec.Command("iptables-legacy", "-nL").Output(); err != nil {
		t.Logf("no iptables-legacy: %v", err)
		return
	}
	for e, err := range probeLegacyExtensions() {
		if err != nil {
			t.Errorf("extension %s of iptables-legacy: %v", e.name, err)
		}
	}
}

func TestProbesRecognizeAbsence(t *testing.T) {
	labtest.NetNSNoIPVS(t)
	ctx := context.Background()
	types, exts := setTypes, extensions
	t.Cleanup(func() { setTypes, extensions = types, exts })
	setTypes = []kernel.SetType{"hash:nosuch"}
	extensions = []extension{{name: "nosuch"}, {name: "NOSUCH", target: true}}
	if err := probeSetTypes(ctx)["hash:nosuch"]; !errors.Is(err, errAbsent) {
		t.Errorf("missing set type: %v", err)
	}
	for _, found := range []map[extension]error{probeExtensions(ctx), probeLegacyExtensions()} {
		for e, err := range found {
			if !errors.Is(err, errAbsent) {
				t.Errorf("missing extension %s: %v", e.name, err)
			}
		}
	}
	compat := compatSubsystem
	t.Cleanup(func() { compatSubsystem = compat })
	extensions, compatSubsystem = exts, 15 // no kernel has this subsystem
	for e, err := range probeExtensions(ctx) {
		if !errors.Is(err, errAbsent) {
			t.Errorf("extension %s without nft_compat: %v", e.name, err)
		}
	}
}
