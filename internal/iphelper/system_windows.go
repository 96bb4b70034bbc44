package iphelper

import (
	"errors"
	"net/netip"
	"syscall"
	"unsafe"

	"golang.org/x/sys/windows"
)

// golang.org/x/sys/windows has the functions that read addresses, but not those that change them.
var (
	library    = windows.NewLazySystemDLL("iphlpapi.dll")
	initialize = library.NewProc("InitializeUnicastIpAddressEntry")
	create     = library.NewProc("CreateUnicastIpAddressEntry")
	remove     = library.NewProc("DeleteUnicastIpAddressEntry")
)

// luid identifies the loopback interface.
type luid uint64

// loopback returns the interface with the address 127.0.0.1 or ::1.
func loopback() (luid, error) {
	rows, err := readRows()
	if err != nil {
		return 0, err
	}
	for _, row := range rows {
		if addressOf(&row).IsLoopback() {
			return luid(row.InterfaceLuid), nil
		}
	}
	return 0, errors.New("no interface has a loopback address")
}

func readRows() ([]windows.MibUnicastIpAddressRow, error) {
	var table *windows.MibUnicastIpAddressTable
	if err := windows.GetUnicastIpAddressTable(windows.AF_UNSPEC, &table); err != nil {
		return nil, err
	}
	defer windows.FreeMibTable(unsafe.Pointer(table))
	return append([]windows.MibUnicastIpAddressRow(nil), unsafe.Slice(&table.Table[0], table.NumEntries)...), nil
}

func (l luid) Addresses() (map[netip.Addr]uint64, error) {
	rows, err := readRows()
	if err != nil {
		return nil, err
	}
	present := map[netip.Addr]uint64{}
	for _, row := range rows {
		if row.InterfaceLuid == uint64(l) {
			present[addressOf(&row)] = createdAt(&row)
		}
	}
	return present, nil
}

// Add adds the address for this host only. Connections that do not name a source address do not use it.
func (l luid) Add(a netip.Addr) (uint64, error) {
	row, err := l.row(a)
	if err != nil {
		return 0, err
	}
	row.OnLinkPrefixLength, row.SkipAsSource = uint8(a.BitLen()), 1
	row.DadState = windows.IpDadStatePreferred // otherwise, nothing can listen there until Windows has looked for duplicates
	if err := call(create, row); err != nil {
		return 0, err
	}
	if err := windows.GetUnicastIpAddressEntry(row); err != nil {
		return 0, errors.Join(err, call(remove, row))
	}
	return createdAt(row), nil
}

func (l luid) Remove(a netip.Addr) error {
	row, err := l.row(a)
	if err != nil {
		return err
	}
	return call(remove, row)
}

func (l luid) row(a netip.Addr) (*windows.MibUnicastIpAddressRow, error) {
	row := &windows.MibUnicastIpAddressRow{}
	if err := initialize.Find(); err != nil {
		return nil, err
	}
	_, _, _ = initialize.Call(uintptr(unsafe.Pointer(row))) // it has no result
	row.InterfaceLuid = uint64(l)
	if a.Is4() {
		four := (*windows.RawSockaddrInet4)(unsafe.Pointer(&row.Address))
		four.Family, four.Addr = windows.AF_INET, a.As4()
	} else {
		row.Address.Family, row.Address.Addr = windows.AF_INET6, a.As16()
	}
	return row, nil
}

func call(function *windows.LazyProc, row *windows.MibUnicastIpAddressRow) error {
	if err := function.Find(); err != nil {
		return err
	}
	if code, _, _ := function.Call(uintptr(unsafe.Pointer(row))); code != 0 {
		return syscall.Errno(code)
	}
	return nil
}

func addressOf(row *windows.MibUnicastIpAddressRow) netip.Addr {
	if row.Address.Family == windows.AF_INET {
		return netip.AddrFrom4((*windows.RawSockaddrInet4)(unsafe.Pointer(&row.Address)).Addr)
	}
	return netip.AddrFrom16(row.Address.Addr)
}

func createdAt(row *windows.MibUnicastIpAddressRow) uint64 {
	return uint64(row.CreationTimeStamp.HighDateTime)<<32 | uint64(row.CreationTimeStamp.LowDateTime)
}
