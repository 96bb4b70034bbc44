package doctor

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// readRoutes finds the interfaces with a default route, and routes to networks elsewhere.
func (f *Facts) readRoutes(h reader) {
	const subject = "default routes"
	var routes []mainRoute
	for line := range strings.Lines(h.must("/proc/net/route", subject)) {
		if r, ok := parseRoute(strings.Fields(line)); ok {
			routes = append(routes, r)
		}
	}
	f.addUplinks(routes)
	f.IPv6Only = len(f.Uplinks) == 0
	text, _ := h.may("/proc/net/ipv6_route", subject) // missing in a kernel without IPv6
	var routes6 []mainRoute
	for line := range strings.Lines(text) {
		if r, ok := parseRoute6(strings.Fields(line)); ok {
			routes6 = append(routes6, r)
		}
	}
	f.addUplinks(routes6)
	for _, r := range routes6 {
		if r.to.Bits() == 0 && r.flags&addressConfigured != 0 && !slices.Contains(f.Advertised, r.device) {
			f.Advertised = append(f.Advertised, r.device)
		}
	}
	for _, r := range routes { // there is no reverse path filter for IPv6
		if f.leadsElsewhere(r.device) && len(f.Elsewhere) < maxElsewhere {
			f.Elsewhere = append(f.Elsewhere, fmt.Sprintf("packets to %s leave through %s", r.to, r.device))
		}
	}
	if len(f.Uplinks) == 0 {
		f.unread("MTU, reverse path filter", errors.New("this node has no default route, so its uplink is unknown"))
	}
}

// maxElsewhere limits the routes that doctor remembers.
const maxElsewhere = 64

// mainRoute is a route of the main table.
type mainRoute struct {
	device string
	to     netip.Prefix
	flags  uint64
}

// Flags of routes in linux/route.h and linux/ipv6_route.h: a route that rejects packets, and one from a router advertisement.
const (
	rejects           = 0x200
	addressConfigured = 0x40000
)

// parseRoute parses a line of /proc/net/route. The kernel prints the bytes of addresses as a number.
func parseRoute(fields []string) (r mainRoute, ok bool) {
	if len(fields) < 8 {
		return r, false
	}
	to, err := strconv.ParseUint(fields[1], 16, 32)
	mask, err2 := strconv.ParseUint(fields[7], 16, 32)
	flags, err3 := strconv.ParseUint(fields[3], 16, 32)
	if err != nil || err2 != nil || err3 != nil || flags&rejects != 0 {
		return r, false
	}
	addr := netip.AddrFrom4([4]byte(binary.NativeEndian.AppendUint32(nil, uint32(to))))
	return mainRoute{fields[0], netip.PrefixFrom(addr, bits.OnesCount64(mask)), flags}, true
}

// parseRoute6 parses a line of /proc/net/ipv6_route. Routes to lo reject packets.
func parseRoute6(fields []string) (r mainRoute, ok bool) {
	if len(fields) < 10 || fields[9] == "lo" {
		return r, false
	}
	to, err := hex.DecodeString(fields[0])
	length, err2 := strconv.ParseUint(fields[1], 16, 8)
	flags, err3 := strconv.ParseUint(fields[8], 16, 32)
	addr, valid := netip.AddrFromSlice(to)
	if err != nil || err2 != nil || err3 != nil || !valid || flags&rejects != 0 {
		return r, false
	}
	return mainRoute{fields[9], netip.PrefixFrom(addr, int(length)), flags}, true
}

// addUplinks adds the interfaces with a default route, or with routes to both halves of all addresses.
func (f *Facts) addUplinks(routes []mainRoute) {
	halves := map[string]map[netip.Prefix]bool{}
	for _, r := range routes {
		switch r.to.Bits() {
		case 0:
			f.addUplink(r.device)
		case 1:
			if halves[r.device] == nil {
				halves[r.device] = map[netip.Prefix]bool{}
			}
			if halves[r.device][r.to] = true; len(halves[r.device]) == 2 && !slices.Contains(f.Uplinks, r.device) {
				f.addUplink(r.device)
				f.Halves = append(f.Halves, r.device)
			}
		}
	}
}

func (f *Facts) addUplink(name string) {
	if !slices.Contains(f.Uplinks, name) {
		f.Uplinks = append(f.Uplinks, name)
	}
}
