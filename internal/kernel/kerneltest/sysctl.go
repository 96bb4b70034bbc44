package kerneltest

import (
	"fmt"
	"maps"
	"net/netip"
	"strconv"
	"strings"
	"syscall"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

func freshSysctls() map[string]string {
	return map[string]string{
		"net/ipv4/ip_forward":                   "0",
		"net/ipv6/conf/all/forwarding":          "0",
		kernel.IPv6SwitchOfNext:                 "0",
		kernel.IPv6Switch:                       "0",
		"net/ipv4/conf/all/arp_ignore":          "0",
		"net/ipv4/conf/all/arp_announce":        "0",
		"net/ipv4/conf/all/route_localnet":      "0",
		"net/ipv4/vs/conntrack":                 "0",
		"net/ipv4/vs/conn_reuse_mode":           "1",
		"net/ipv4/vs/expire_nodest_conn":        "0",
		"net/ipv4/vs/expire_quiescent_template": "0",
		"net/ipv4/vs/run_estimation":            "1",
		"net/ipv4/vs/sloppy_tcp":                "0",
		"net/ipv4/vs/schedule_icmp":             "0",
		"net/ipv4/vs/snat_reroute":              "1",
		"net/ipv4/vs/nat_icmp_send":             "0",

		"net/netfilter/nf_conntrack_max":                     "262144",
		"net/netfilter/nf_conntrack_tcp_be_liberal":          "0",
		"net/netfilter/nf_conntrack_tcp_timeout_close_wait":  "60",
		"net/netfilter/nf_conntrack_tcp_timeout_established": "432000",
		"net/netfilter/nf_conntrack_udp_timeout":             "30",
		"net/netfilter/nf_conntrack_udp_timeout_stream":      "120",
	}
}

func (f *Fake) readSysctls(s *kernel.State) {
	maps.Copy(s.Sysctls, f.sysctls)
	if !f.device {
		delete(s.Sysctls, kernel.IPv6Switch)
	}
}

func (f *Fake) applySysctl(verb kernel.Verb, want kernel.SysctlSetting) error {
	if verb != kernel.Ensure {
		return errVerb("a sysctl")
	}
	if _, ok := f.sysctls[want.Name]; !ok {
		return fmt.Errorf("open /proc/sys/%s: %w", want.Name, kernel.ErrUnavailable)
	}
	if f.fixed[want.Name] {
		return fmt.Errorf("open /proc/sys/%s: %w: %w", want.Name, kernel.ErrUnavailable, syscall.EACCES)
	}
	if _, err := strconv.Atoi(strings.TrimSpace(want.Value)); err != nil {
		return fmt.Errorf("write /proc/sys/%s: %w", want.Name, syscall.EINVAL)
	}
	f.sysctls[want.Name] = strings.TrimSpace(want.Value)
	if f.ipv6Off() {
		maps.DeleteFunc(f.addresses, func(a netip.Addr, _ kernel.Binding) bool { return a.Is6() })
	}
	return nil
}

// Fixes makes a sysctl read-only, like nf_conntrack_max outside the initial network namespace, or writable again.
func (f *Fake) Fixes(sysctl string, fixed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fixed[sysctl] = fixed
}
