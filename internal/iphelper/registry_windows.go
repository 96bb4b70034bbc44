package iphelper

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/windows/registry"
)

// recordKey is the key in HKEY_LOCAL_MACHINE that contains a value for each address. Only administrators can write there.
const recordKey = `SOFTWARE\kube-ipvs-addresses`

type registryRecord struct {
	key  registry.Key
	path string
}

func openRegistry(path string) (*registryRecord, error) {
	key, _, err := registry.CreateKey(registry.LOCAL_MACHINE, path, registry.QUERY_VALUE|registry.SET_VALUE)
	if err != nil {
		return nil, fmt.Errorf(`open the registry key HKLM\%s, which needs an administrator: %w`, path, err)
	}
	return &registryRecord{key, path}, nil
}

func (r *registryRecord) Read() (map[netip.Addr]uint64, error) {
	names, err := r.key.ReadValueNames(-1)
	if err != nil {
		return nil, err
	}
	recorded := make(map[netip.Addr]uint64, len(names))
	for _, name := range names {
		a, err := netip.ParseAddr(name)
		if err != nil {
			return nil, fmt.Errorf(`HKLM\%s: %w`, r.path, err)
		}
		if recorded[a], _, err = r.key.GetIntegerValue(name); err != nil {
			return nil, fmt.Errorf(`HKLM\%s: %s: %w`, r.path, name, err)
		}
	}
	return recorded, nil
}

func (r *registryRecord) Write(a netip.Addr, created uint64) error {
	return r.key.SetQWordValue(a.String(), created)
}

func (r *registryRecord) Forget(a netip.Addr) error {
	if err := r.key.DeleteValue(a.String()); !errors.Is(err, registry.ErrNotExist) {
		return err
	}
	return nil
}

// close deletes the key if it has no values.
func (r *registryRecord) close() error {
	recorded, err := r.Read()
	if err == nil && len(recorded) == 0 {
		err = registry.DeleteKey(registry.LOCAL_MACHINE, r.path)
	}
	return errors.Join(err, r.key.Close())
}
