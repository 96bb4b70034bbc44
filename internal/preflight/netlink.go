package preflight

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/sockopt"
)

// ipvsFamily requests the ID of the IPVS family, which loads the module. Without this ID, the kernel silently drops all
// other requests.
func ipvsFamily() (uint16, error) {
	family, err := netlink.GenlFamilyGet("IPVS")
	if errors.Is(err, unix.ENOENT) {
		return 0, fmt.Errorf("IPVS: %w", errAbsent)
	}
	if err != nil {
		return 0, fmt.Errorf("look up IPVS: %w", err)
	}
	return family.ID, nil
}

// Constants from linux/ip_vs.h.
const (
	ipvsVersion    = 1
	ipvsNewService = 1
	ipvsDelService = 3

	ipvsAttrService = 1
	svcAF           = 1
	svcFWMark       = 5
	svcScheduler    = 6
	svcFlags        = 7
	svcTimeout      = 8
	svcNetmask      = 9
)

// probeMark is the firewall mark of a virtual server that is never created.
const probeMark = 0x6b697076

// probeSchedulers requests an IPv6 virtual server with an invalid netmask for each scheduler. The kernel loads the
// scheduler's module before it rejects the netmask.
// https://elixir.bootlin.com/linux/v6.1/source/net/netfilter/ipvs/ip_vs_ctl.c#L1348
func probeSchedulers(ctx context.Context, family uint16, names []string) map[string]error {
	request := func(command byte, name string) nlbatch.Request {
		payload := []byte{command, ipvsVersion, 0, 0}
		return nlbatch.Request{Type: family, Payload: nlbatch.AppendNest(payload, ipvsAttrService, func(b []byte) []byte {
			b = nlbatch.AppendUint16(b, svcAF, unix.AF_INET6)
			b = nlbatch.AppendUint32(b, svcFWMark, probeMark)
			b = nlbatch.AppendString(b, svcScheduler, name)
			b = nlbatch.AppendAttr(b, svcFlags, make([]byte, 8))
			b = nlbatch.AppendUint32(b, svcTimeout, 0)
			return nlbatch.AppendUint32(b, svcNetmask, 0)
		})}
	}
	var reqs []nlbatch.Request
	for _, name := range names {
		// If the kernel does not reject the netmask, the second request deletes the virtual server.
		reqs = append(reqs, request(ipvsNewService, name), request(ipvsDelService, name))
	}
	errs := ask(ctx, unix.NETLINK_GENERIC, reqs)
	found := map[string]error{}
	for i, name := range names {
		found[name] = presence(errs[2*i], unix.ENOENT, unix.EINVAL)
	}
	return found
}

// Constants from linux/netfilter/ipset/ip_set.h.
const (
	ipsetSubsystem = 6
	ipsetType      = 13
	ipsetProtocol  = 6 // the oldest version in use

	ipsetAttrProtocol = 1
	ipsetAttrTypeName = 3
	ipsetAttrFamily   = 5

	// ipsetErrFindType means "no such type". It is not a standard errno.
	ipsetErrFindType = syscall.Errno(4098)
)

// probeSetTypes requests the revisions of set types, which loads their modules.
func probeSetTypes(ctx context.Context) map[kernel.SetType]error {
	var reqs []nlbatch.Request
	for _, t := range setTypes {
		payload := netfilterHeader()
		payload = nlbatch.AppendUint8(payload, ipsetAttrProtocol, ipsetProtocol)
		payload = nlbatch.AppendString(payload, ipsetAttrTypeName, string(t))
		payload = nlbatch.AppendUint8(payload, ipsetAttrFamily, unix.AF_INET)
		reqs = append(reqs, nlbatch.Request{Type: ipsetSubsystem<<8 | ipsetType, Payload: payload})
	}
	found := map[kernel.SetType]error{}
	for i, err := range ask(ctx, unix.NETLINK_NETFILTER, reqs) {
		if errors.Is(err, unix.EINVAL) { // no ipset subsystem is registered
			err = ipsetErrFindType
		}
		found[setTypes[i]] = presence(err, ipsetErrFindType)
	}
	return found
}

// compatSubsystem is the netlink subsystem through which nftables uses iptables extensions. The module nft_compat registers it.
var compatSubsystem uint16 = 11

// Constants from linux/netfilter/nf_tables_compat.h.
const (
	compatName     = 1
	compatRevision = 2
	compatTarget   = 3
)

// probeExtensions requests revision 0 of each extension, which loads its module. An error about the revision proves
// that the extension exists.
func probeExtensions(ctx context.Context) map[extension]error {
	var reqs []nlbatch.Request
	for _, e := range extensions {
		kind := uint32(0)
		if e.target {
			kind = 1
		}
		payload := nlbatch.AppendString(netfilterHeader(), compatName, e.name)
		payload = nlbatch.AppendAttr(payload, compatRevision, make([]byte, 4))
		payload = nlbatch.AppendAttr(payload, compatTarget, binary.BigEndian.AppendUint32(nil, kind))
		reqs = append(reqs, nlbatch.Request{Type: compatSubsystem << 8, Payload: payload})
	}
	found := map[extension]error{}
	for i, err := range ask(ctx, unix.NETLINK_NETFILTER, reqs) {
		if errors.Is(err, unix.EINVAL) { // nft_compat is missing
			err = unix.ENOENT
		}
		found[extensions[i]] = presence(err, unix.ENOENT, unix.EPROTONOSUPPORT)
	}
	return found
}

// probeLegacyExtensions is probeExtensions for iptables-legacy. A test of a restore does not notice a missing extension: only the kernel does, when
// the rules are committed.
func probeLegacyExtensions() map[extension]error {
	// struct xt_get_revision and the socket options from linux/netfilter_ipv4/ip_tables.h
	const nameLength, getMatchRevision, getTargetRevision = 29, 66, 67
	found := map[extension]error{}
	socket, err := sockopt.Open(inet.IPv4)
	if err == nil {
		defer func() { _ = socket.Close() }()
	}
	for _, e := range extensions {
		answer := err
		if answer == nil {
			asked := make([]byte, nameLength+1) // revision 0
			copy(asked, e.name)
			option := getMatchRevision
			if e.target {
				option = getTargetRevision
			}
			answer = socket.Get(option, asked)
		}
		found[e] = presence(answer, unix.ENOENT, unix.EPROTONOSUPPORT)
	}
	return found
}

func netfilterHeader() []byte { return []byte{unix.AF_INET, 0, 0, 0} }

func ask(ctx context.Context, protocol int, reqs []nlbatch.Request) []error {
	conn, err := nlbatch.Dial(protocol)
	if err != nil {
		errs := make([]error, len(reqs))
		for i := range errs {
			errs[i] = err
		}
		return errs
	}
	defer conn.Close()
	return conn.Do(ctx, reqs)
}

// presence interprets a probe's error. absent is the error that the kernel returns for a missing module. there lists
// errors that prove that the module exists.
func presence(err error, absent error, there ...error) error {
	if errors.Is(err, absent) {
		return errAbsent
	}
	for _, e := range there {
		if errors.Is(err, e) {
			return nil
		}
	}
	return err
}
