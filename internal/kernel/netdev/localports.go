package netdev

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

const (
	localPortRange = "net/ipv4/ip_local_port_range"
	reservedPorts  = "net/ipv4/ip_local_reserved_ports"
)

// LocalPorts returns the source ports that the kernel chooses for this node's own connections. On error, it returns
// the kernel's default.
func LocalPorts() (kernel.Ports, error) {
	all, err := LocalPortRange()
	if err != nil {
		return kernel.DefaultLocalPorts, err
	}
	reserved, err := ReservedPorts()
	if err != nil {
		return kernel.DefaultLocalPorts, err
	}
	return all.Without(reserved), nil
}

// LocalPortRange returns the ports from which the kernel chooses source ports, including the reserved ones.
func LocalPortRange() (kernel.Ports, error) { return ownSysctls.localPortRange() }

// ReservedPorts returns the ports that the kernel does not choose.
func ReservedPorts() (kernel.Ports, error) { return ownSysctls.reservedPorts() }

// ReservePorts replaces the ports that the kernel does not choose.
func ReservePorts(ports kernel.Ports) error {
	return chooseSysctls(mountedSysctls, ownSysctls).reservePorts(ports)
}

func (t sysctlTree) localPortRange() (kernel.Ports, error) {
	text, err := t.read(localPortRange)
	if err != nil {
		return nil, err
	}
	ports, err := kernel.ParsePorts(strings.Join(strings.Fields(text), "-"))
	if err == nil && len(ports) != 1 {
		err = fmt.Errorf("it has %d ranges", len(ports))
	}
	if err != nil {
		return nil, fmt.Errorf("sysctl net.ipv4.ip_local_port_range is %q, not two ports: %w", text, err)
	}
	return ports, nil
}

// longestList is enough for every second port.
const longestList = 1 << 18

// reservedPorts uses one long read: the first read returns as much of the list as fits, and later ones nothing.
func (t sysctlTree) reservedPorts() (kernel.Ports, error) {
	f, err := os.Open(t.path(reservedPorts))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read sysctl %s: %w", reservedPorts, err)
	}
	list := make([]byte, longestList)
	n, err := f.Read(list)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	var ports kernel.Ports
	if err = errors.Join(err, f.Close()); err == nil {
		ports, err = kernel.ParsePorts(strings.TrimSpace(string(list[:n])))
	}
	if err != nil {
		return nil, fmt.Errorf("read sysctl %s: %w", reservedPorts, err)
	}
	return ports, nil
}

func (t sysctlTree) reservePorts(ports kernel.Ports) error {
	s := kernel.SysctlSetting{Name: reservedPorts, Value: ports.String()}
	// Without the line feed, an empty list would not be written at all.
	if err := t.writeFile(kernel.SysctlSetting{Name: s.Name, Value: s.Value + "\n"}); err != nil {
		return explainSysctl(s, t.fixed(s.Name), err)
	}
	return nil
}
