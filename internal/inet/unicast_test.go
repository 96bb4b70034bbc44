package inet

import (
	"net/netip"
	"testing"
)

func TestCheckUnicast(t *testing.T) {
	for addr, want := range map[string]string{
		"10.96.0.10":      "",
		"fd00::10":        "",
		"255.255.255.254": "",
		"0.0.0.0":         "is not a host address",
		"::":              "is not a host address",
		"127.0.0.53":      "is a loopback address, which every node has",
		"::1":             "is a loopback address, which every node has",
		"224.0.0.1":       "is a multicast address",
		"ff02::1":         "is a multicast address",
		"169.254.1.1":     "is a link-local address, which names a different host on every link",
		"fe80::1":         "is a link-local address, which names a different host on every link",
		"255.255.255.255": "is the broadcast address",
		"fd00:ec2::254":   "is a cloud's metadata server, which provides credentials or commands to nodes",
		"168.63.129.16":   "is a cloud's metadata server, which provides credentials or commands to nodes",
		"100.100.100.200": "is a cloud's metadata server, which provides credentials or commands to nodes",
		"192.0.0.192":     "is a cloud's metadata server, which provides credentials or commands to nodes",
		"0.0.0.1":         "is in 0.0.0.0/8, which is reserved",
		"fd00:ec2::253":   "",
	} {
		switch err := CheckUnicast(netip.MustParseAddr(addr)); {
		case err == nil && want == "":
		case err == nil || err.Error() != want:
			t.Errorf("%s: %v, want %q", addr, err, want)
		}
	}
	if CheckUnicast(netip.Addr{}) == nil {
		t.Error("the zero address is accepted")
	}
}
