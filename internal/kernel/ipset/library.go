package ipset

import (
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// libraryTimeout limits a single request. The library's default is one minute.
const libraryTimeout = 5 * time.Second

// withLibrary calls use with a vishvananda/netlink handle in the calling thread's namespace.
func withLibrary(use func(*netlink.Handle) error) (err error) {
	h, err := netlink.NewHandle(unix.NETLINK_NETFILTER)
	if err != nil {
		return fmt.Errorf("open netfilter socket: %w", err)
	}
	defer h.Close()
	if err := h.SetSocketTimeout(libraryTimeout); err != nil {
		return err
	}
	// The library panics if it cannot convert an error to an errno. A message from another process can cause this.
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("ipset request failed: %v", p)
		}
	}()
	return use(h)
}

// create does not change an existing set.
func create(s kernel.Set) error {
	if !ours(s.Type) {
		return fmt.Errorf("type %q is not supported", s.Type)
	}
	if len(s.Name) > maxName {
		return fmt.Errorf("name is longer than %d characters", maxName)
	}
	family := uint8(unix.AF_INET)
	if s.Family == inet.IPv6 {
		family = unix.AF_INET6
	}
	err := withLibrary(func(h *netlink.Handle) error {
		return h.IpsetCreate(s.Name, string(s.Type), netlink.IpsetCreateOptions{Family: family, MaxElements: s.MaxElem})
	})
	switch {
	case errors.Is(err, unix.EEXIST):
		return kernel.ErrExists
	case isLibraryError(err, nl.IPSET_ERR_FIND_TYPE):
		return fmt.Errorf("type is %w: the module for %s sets is missing; run `modprobe %s` on the node: %w",
			kernel.ErrUnavailable, s.Type, modules[s.Type], err)
	}
	return err
}

var modules = map[kernel.SetType]string{
	kernel.HashIP:        "ip_set_hash_ip",
	kernel.HashIPPort:    "ip_set_hash_ipport",
	kernel.HashIPPortIP:  "ip_set_hash_ipportip",
	kernel.HashIPPortNet: "ip_set_hash_ipportnet",
}

// destroy succeeds if the set does not exist.
func destroy(name string) error {
	err := withLibrary(func(h *netlink.Handle) error { return h.IpsetDestroy(name) })
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil
	case isLibraryError(err, nl.IPSET_ERR_BUSY):
		return fmt.Errorf("%w: %w", errInUse, unix.EBUSY)
	}
	return err
}

var errInUse = errors.New("a rule still refers to the set, or another program is listing it")

func swap(a, b string) error {
	return withLibrary(func(h *netlink.Handle) error { return h.IpsetSwap(a, b) })
}

// isLibraryError reports whether err is the library's own error with this code. errors.Is compares such errors by value.
func isLibraryError(err error, code uintptr) bool { return errors.Is(err, nl.IPSetError(code)) }
