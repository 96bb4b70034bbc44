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
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/iptables"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/netdev"
)

func probeMode(ctx context.Context, needs Needs) (f facts) {
	f.kernelIPv6 = iptables.KernelHasIPv6()
	f.ipvsFamily, f.ipvs = ipvsFamily()
	if nftables, _ := nftablesBalances(needs.DataPlane, f.ipvs); nftables || needs.Rules == kernel.RulesNFTables {
		return f
	}
	f.detected, f.iptables = iptables.Detect(ctx)
	f.setTypes = probeSetTypes(ctx)
	switch {
	case f.iptables != nil:
	case f.detected.Variant == iptables.Legacy:
		f.extensions = probeLegacyExtensions()
	default:
		f.extensions = probeExtensions(ctx)
	}
	return f
}

func (f *facts) probe(ctx context.Context, needs Needs, objects Objects, mode kernel.Mode) {
	f.kernel, f.capabilities, f.ipv6, f.bridges = runningKernel(), capabilities(), hasIPv6(), probeBridges()
	f.dummy = probeLink("dummy", func(a netlink.LinkAttrs) netlink.Link { return &netlink.Dummy{LinkAttrs: a} })
	f.bridge = probeLink("bridge", func(a netlink.LinkAttrs) netlink.Link { return &netlink.Bridge{LinkAttrs: a} })
	if f.ipvs == nil {
		f.schedulers = probeSchedulers(ctx, f.ipvsFamily, needs.Schedulers)
	}
	f.sysctls = map[string]sysctl{}
	for _, s := range objects.Sysctls { // after the modules that create them are loaded
		if have, ok := probeSysctl(s.Name); ok {
			f.sysctls[s.Name] = have
		}
	}
	if mode.RulesInNFTables() {
		f.nftables = probeNFTables(ctx, needs.Families, objects, mode)
	}
}

func runningKernel() (k kernelVersion) {
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		k.release = unix.ByteSliceToString(u.Release[:])
	}
	banner, _ := os.ReadFile("/proc/version")
	signature, _ := os.ReadFile("/proc/version_signature") // exists only on Ubuntu
	k.banner, k.signature = string(banner), string(signature)
	return k
}

func capabilities() uint64 {
	status, err := os.ReadFile("/proc/thread-self/status")
	if err != nil {
		return 0
	}
	return parseCapabilities(string(status))
}

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

// probeLink requests a device with more queues than allowed. The kernel loads the type's module before it rejects the
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
		fixed:    netdev.FixedSysctl(name),
	}, true
}

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

func hasIPv6() bool {
	disabled, ok := probeSysctl("net/ipv6/conf/default/disable_ipv6")
	return ok && disabled.value == "0"
}
