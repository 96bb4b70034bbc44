package preflight

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/netdev"
)

// probe also puts into needs where rules have to be.
func probe(ctx context.Context, needs *Needs) facts {
	f := facts{
		release:      release(),
		capabilities: capabilities(),
		dummy:        probeLink("dummy", func(a netlink.LinkAttrs) netlink.Link { return &netlink.Dummy{LinkAttrs: a} }),
		bridge:       probeLink("bridge", func(a netlink.LinkAttrs) netlink.Link { return &netlink.Bridge{LinkAttrs: a} }),
		sysctls:      map[string]sysctl{},
		ipv6:         hasIPv6(),
		bridges:      probeBridges(),
	}
	var family uint16
	if family, f.ipvs = ipvsFamily(); f.ipvs == nil {
		f.schedulers = probeSchedulers(ctx, family, needs.Schedulers)
	}
	plane := chooseDataPlane(needs.DataPlane, f.ipvs)
	needs.Rules = rulesSetting(needs.Rules, plane)
	for _, s := range needs.Sysctls { // after the module that creates them
		if have, ok := probeSysctl(s.Name); ok {
			f.sysctls[s.Name] = have
		}
	}
	rules := probeRules(ctx, needs.Rules)
	f.iptables, f.detected, f.setTypes, f.extensions = rules.iptables, rules.detected, rules.setTypes, rules.extensions
	if nftables, _ := choose(needs.Rules, f); nftables {
		f.nftables = probeNFTables(ctx, *needs, plane)
	}
	return f
}

func release() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

func capabilities() uint64 {
	status, err := os.ReadFile("/proc/thread-self/status")
	if err != nil {
		return 0
	}
	return parseCapabilities(string(status))
}

// parseCapabilities reads the effective capabilities of a process from its status file.
func parseCapabilities(status string) uint64 {
	for line := range strings.Lines(status) {
		if text, ok := strings.CutPrefix(line, "CapEff:"); ok {
			bits, err := strconv.ParseUint(strings.TrimSpace(text), 16, 64)
			if err != nil {
				return 0
			}
			return bits
		}
	}
	return 0
}

// probeLink requests a device with more queues than allowed: the kernel looks up the type, loads its module, and only then rejects the
// number.
func probeLink(typ string, of func(netlink.LinkAttrs) netlink.Link) error {
	if link, err := netlink.LinkByName(kernel.Device); err == nil && link.Type() == typ {
		return nil
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.NumTxQueues = "kube-ipvs-probe", 1<<16
	link := of(attrs)
	err := netlink.LinkAdd(link)
	switch {
	case errors.Is(err, unix.EINVAL):
		return nil
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("%s: %w", typ, errAbsent)
	case err == nil: // before Linux 4.20
		return netlink.LinkDel(link)
	}
	return err
}

func probeSysctl(name string) (sysctl, bool) {
	path := netdev.SysctlFile(name)
	value, err := os.ReadFile(path)
	if err != nil {
		return sysctl{}, false
	}
	return sysctl{
		value:    strings.Join(strings.Fields(string(value)), " "),
		writable: unix.Access(path, unix.W_OK) == nil,
	}, true
}

// probeBridges returns no bridges if they cannot be listed.
func probeBridges() []kernel.Bridge {
	b, err := netdev.New()
	if err != nil {
		return nil
	}
	defer func() { _ = b.Close() }()
	bridges, err := b.Bridges()
	if err != nil {
		return nil
	}
	return bridges
}

// hasIPv6 reports whether a new device gets IPv6.
func hasIPv6() bool {
	disabled, ok := probeSysctl("net/ipv6/conf/default/disable_ipv6")
	return ok && disabled.value == "0"
}
