package netdev

import (
	"bufio"
	"bytes"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// resolverFiles list the nameservers of this node. With systemd-resolved, the first file lists only the stub at 127.0.0.53, and the second
// file lists the actual servers. In a pod, the kubelet writes the actual servers into the first file.
var resolverFiles = []string{"/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"}

// resolverLimit is how long a call waits for a read of one of these files. A file system may hang, and Services must not wait for it.
const resolverLimit = time.Second

type resolverFile struct {
	read func() ([]byte, error)
	last []netip.Addr // from the last successful read
	// running receives the result of a read that has not ended; nil if there is none.
	running chan resolved
}

type resolved struct {
	text []byte
	err  error
}

func openResolverFiles(paths []string) (files []*resolverFile) {
	for _, path := range paths {
		files = append(files, &resolverFile{read: func() ([]byte, error) { return os.ReadFile(path) }})
	}
	return files
}

// nameservers reads the file. While the file cannot be read, it returns the last nameservers. If the file does not exist, it returns none,
// because the node may have no DNS.
func (f *resolverFile) nameservers() []netip.Addr {
	if f.running != nil {
		select {
		case now := <-f.running:
			f.take(now)
		default:
			return f.last
		}
	}
	running := make(chan resolved, 1)
	go func() {
		text, err := f.read()
		running <- resolved{text, err}
	}()
	select {
	case now := <-running:
		f.take(now)
	case <-time.After(resolverLimit):
		f.running = running
	}
	return f.last
}

func (f *resolverFile) take(now resolved) {
	f.running = nil
	if now.err == nil || errors.Is(now.err, fs.ErrNotExist) {
		f.last = nameservers(now.text)
	}
}

// addNameservers adds the nameservers from the files, except addresses that already have a role.
func addNameservers(network kernel.Network, files []*resolverFile) {
	for _, file := range files {
		for _, addr := range file.nameservers() {
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
