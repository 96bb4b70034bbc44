package netdev

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// LocalPorts returns the source ports that the kernel chooses for this node's own connections. On error, it returns
// the kernel's default.
func LocalPorts() (kernel.Ports, error) {
	chosen, err := ownSysctls.read("net/ipv4/ip_local_port_range")
	if err != nil {
		return kernel.DefaultLocalPorts, err
	}
	reserved, err := ownSysctls.read("net/ipv4/ip_local_reserved_ports")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return kernel.DefaultLocalPorts, err
	}
	return localPorts(chosen, reserved)
}

// localPorts parses a range such as "32768 60999", and reserved ports such as "8080,9000-9010".
func localPorts(chosen, reserved string) (kernel.Ports, error) {
	all, err := parsePorts(strings.Join(strings.Fields(chosen), "-"))
	if err == nil && len(all) != 1 {
		err = fmt.Errorf("it has %d ranges", len(all))
	}
	if err != nil {
		return kernel.DefaultLocalPorts, fmt.Errorf("sysctl net.ipv4.ip_local_port_range is %q, not two ports: %w", chosen, err)
	}
	without, err := parsePorts(reserved)
	if err != nil {
		return kernel.DefaultLocalPorts, fmt.Errorf("sysctl net.ipv4.ip_local_reserved_ports: %w", err)
	}
	return all.Without(without), nil
}

func parsePorts(list string) (ports kernel.Ports, err error) {
	for text := range strings.SplitSeq(list, ",") {
		if text == "" {
			continue
		}
		first, last, isRange := strings.Cut(text, "-")
		if !isRange {
			last = first
		}
		from, err1 := strconv.ParseUint(first, 10, 16)
		to, err2 := strconv.ParseUint(last, 10, 16)
		if err := errors.Join(err1, err2); err != nil {
			return nil, fmt.Errorf("%q is not a range of ports: %w", text, err)
		}
		ports = append(ports, kernel.PortRange{First: uint16(from), Last: uint16(to)})
	}
	return ports, nil
}
