package kerneltest

import (
	"fmt"
	"maps"
	"syscall"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

func (f *Fake) readDevice(s *kernel.State) {
	s.Device = f.device
	maps.Copy(s.Addresses, f.addresses)
}

func (f *Fake) applyDevice(verb kernel.Verb) error {
	switch verb {
	case kernel.Create:
		if f.device {
			return kernel.ErrExists
		}
		f.device = true
		return nil
	case kernel.Delete:
		f.device = false
		clear(f.addresses)
		return nil
	}
	return errVerb("the device")
}

func (f *Fake) applyAddress(verb kernel.Verb, a kernel.BoundAddress) error {
	if !a.Addr.IsValid() || a.Addr.Is4In6() || a.Addr.Zone() != "" {
		return fmt.Errorf("not an address: %w", syscall.EINVAL)
	}
	switch verb {
	case kernel.Create:
		if !f.device {
			return fmt.Errorf("no device %s: %w", kernel.Device, kernel.ErrNotFound)
		}
		f.addresses[a.Addr] = struct{}{}
		return nil
	case kernel.Delete:
		delete(f.addresses, a.Addr)
		return nil
	}
	return errVerb("an address")
}
