package netdev

import (
	"bufio"
	"bytes"
	"net/netip"
	"os"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// resolverFiles name the nameservers of this node. With systemd-resolved, the first file names only its stub at 127.0.0.53, and the second
// one the servers behind it. In a pod, the kubelet has written these into the first.
var resolverFiles = []string{"/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"}

// addNameservers adds the addresses in the files that have no other role. A file that cannot be read adds none: the node may have no DNS.
func addNameservers(network kernel.Network, files []string) {
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for _, addr := range nameservers(text) {
			if _, used := network[addr]; !used {
				network[addr] = kernel.NetworkRole{Kind: kernel.Nameserver}
			}
		}
	}
}

// nameservers lists the addresses in a resolv.conf, except loopback and link-local ones, which Services cannot use.
func nameservers(text []byte) (addrs []netip.Addr) {
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 || fields[0] != "nameserver" {
			continue
		}
		if addr, err := netip.ParseAddr(fields[1]); err == nil && !addr.IsLoopback() && !addr.IsLinkLocalUnicast() {
			addrs = append(addrs, addr.Unmap().WithZone(""))
		}
	}
	return addrs
}
