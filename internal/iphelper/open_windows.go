package iphelper

import (
	"errors"
	"fmt"

	"golang.org/x/sys/windows"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// mutex exists while a process has the addresses open.
const mutex = `Global\kube-ipvs-addresses`

// Open returns the addresses of this machine. It fails if another process has opened them. It needs an administrator.
func Open() (*Holder, error) {
	name, err := windows.UTF16PtrFromString(mutex)
	if err != nil {
		return nil, err
	}
	handle, err := windows.CreateMutex(nil, false, name)
	if errors.Is(err, windows.ERROR_ALREADY_EXISTS) {
		_ = windows.CloseHandle(handle)
		return nil, errors.New("another agent on this machine serves Services at their addresses; stop it first")
	}
	if err != nil {
		return nil, fmt.Errorf("create the mutex %s: %w", mutex, err)
	}
	release := func() error { return windows.CloseHandle(handle) }
	interfaceLUID, err := loopback()
	if err != nil {
		return nil, errors.Join(err, release())
	}
	kept, err := openRegistry(recordKey)
	if err != nil {
		return nil, errors.Join(err, release())
	}
	return &Holder{interfaceLUID, kept, func() error { return errors.Join(kept.close(), release()) }}, nil
}

// Node returns the machine's own addresses, and what its networks need.
func (h *Holder) Node() (*kernel.Node, error) {
	adapters, err := readAdapters()
	if err != nil {
		return nil, fmt.Errorf("list the network interfaces: %w", err)
	}
	return nodeOf(adapters), nil
}
