package inet

import (
	"net/netip"
	"testing"
)

func TestUnfit(t *testing.T) {
	for addr, want := range map[string]string{
		"10.96.0.10":      "",
		"fd00::10":        "",
		"255.255.255.254": "",
		"0.0.0.0":         "is no host's address",
		"::":              "is no host's address",
		"127.0.0.53":      "is a loopback address, which would be every node's own",
		"::1":             "is a loopback address, which would be every node's own",
		"224.0.0.1":       "is a multicast address",
		"ff02::1":         "is a multicast address",
		"169.254.1.1":     "is a link-local address, which means another host on every link",
		"fe80::1":         "is a link-local address, which means another host on every link",
		"255.255.255.255": "is the broadcast address",
	} {
		if got := Unfit(netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s: %q, want %q", addr, got, want)
		}
	}
	if got := Unfit(netip.Addr{}); got != "is no host's address" {
		t.Errorf("no address at all: %q", got)
	}
}
