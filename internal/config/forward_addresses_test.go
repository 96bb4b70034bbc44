package config

import (
	"strings"
	"testing"
)

// TestForwardAddresses: only the data plane in user space listens at the addresses of Services, and settings that need
// rules are refused there. Each error names the settings, their values and the remedy.
func TestForwardAddresses(t *testing.T) {
	const services, userspace = "--forward-addresses=services", "--data-plane=userspace"
	for _, c := range []struct {
		flags     []string
		inProcess bool
		wrong     string
	}{
		{[]string{userspace}, false, ""},
		{[]string{userspace, services}, true, ""},
		{[]string{userspace, services, "--remove-startup-taint"}, true, ""},
		{[]string{services}, false, `--forward-addresses "services" and --data-plane "auto": only the data plane userspace listens; use dataPlane: userspace`},
		{[]string{services, "--data-plane=ipvs"}, false, `and --data-plane "ipvs"`},
		{[]string{userspace, "--forward-addresses=all"}, false, `--forward-addresses "all": must be one of loopback, services`},
		{[]string{userspace, services, "--addresses=routes"}, true, `and --addresses "routes": in user space, addresses are always routes; remove addresses`},
		{[]string{userspace, services, "--masquerade-pod-egress", "--cluster-cidr=10.244.0.0/16"}, true, "let the network plugin masquerade"},
		{[]string{userspace, "--remove-startup-taint"}, false, "or use forward.addresses: services"},
	} {
		loaded, err := parse(t, c.flags...).load(nil)
		switch {
		case c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)):
			t.Errorf("%q: error %v, want %q", c.flags, err, c.wrong)
		case c.wrong == "" && (err != nil || loaded.Settings.InProcess() != c.inProcess):
			t.Errorf("%q: error %v", c.flags, err)
		}
	}
}
