package kerneltest

import (
	"context"
	"fmt"
	"maps"
	"syscall"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

func (f *Fake) readDevice(s *kernel.State) {
	s.Device = f.device
	maps.Copy(s.Addresses, f.addresses)
}

// HasDevice implements Kernel.
func (f *Fake) HasDevice(ctx context.Context) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.device, ctx.Err()
}

func (f *Fake) applyDevice(verb kernel.Verb) error {
	switch verb {
	case kernel.Create:
		if f.device {
			return kernel.ErrExists
		}
		f.device = true
		if !f.ipv6Off() { // a dump lists the sysctl before the device
			f.sysctls[kernel.IPv6Switch] = f.sysctls[kernel.IPv6SwitchOfNext]
		}
		return nil
	case kernel.Delete:
		f.device = false
		f.sysctls[kernel.IPv6Switch] = "0"
		clear(f.addresses)
		return nil
	}
	return errVerb("the device")
}

func (f *Fake) applyAddress(verb kernel.Verb, a kernel.BoundAddress) error {
	if !a.Addr.IsValid() || a.Addr.Is4In6() || a.Addr.Zone() != "" {
		return fmt.Errorf("not an address: %w", syscall.EINVAL)
	}
	switch {
	case verb == kernel.Create && !f.device:
		return fmt.Errorf("no device %s: %w", kernel.Device, kernel.ErrNotFound)
	case verb == kernel.Create && a.Addr.Is6() && f.ipv6Off():
		return fmt.Errorf("IPv6 is disabled: %w", syscall.EACCES)
	case a.Binding == kernel.Routed && a.Addr.Is6(), verb == kernel.Create && a.Binding == kernel.BoundTwice, verb != kernel.Create && verb != kernel.Delete:
		return errVerb("an address")
	}
	a.Advance(f.addresses, verb)
	return nil
}

func (f *Fake) ipv6Off() bool { return f.device && f.sysctls[kernel.IPv6Switch] == "1" }
