package main

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// known lists the capabilities that a test may grant.
var known = map[string]uint{
	"NET_ADMIN":    unix.CAP_NET_ADMIN,
	"NET_RAW":      unix.CAP_NET_RAW,
	"SYS_MODULE":   unix.CAP_SYS_MODULE,
	"SYS_RESOURCE": unix.CAP_SYS_RESOURCE,
}

func parseCapabilities(text string) ([]uint, error) {
	var all []uint
	for name := range strings.SplitSeq(text, ",") {
		number, ok := known[name]
		if !ok {
			return nil, fmt.Errorf("unknown capability %q", name)
		}
		all = append(all, number)
	}
	return all, nil
}

// limit sets the bounding, permitted and effective capabilities, as container runtimes do.
func limit(capabilities []uint) error {
	for c := uint(0); c <= unix.CAP_LAST_CAP; c++ {
		if slices.Contains(capabilities, c) {
			continue
		}
		// Older kernels lack the last capabilities.
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(c), 0, 0, 0); err != nil && err != unix.EINVAL {
			return fmt.Errorf("drop capability %d: %w", c, err)
		}
	}
	if err := unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0); err != nil {
		return fmt.Errorf("clear ambient capabilities: %w", err)
	}
	var data [2]unix.CapUserData // lower and upper halves of the sets
	for _, c := range capabilities {
		data[c/32].Permitted |= 1 << (c % 32)
		data[c/32].Effective |= 1 << (c % 32)
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	if err := unix.Capset(&header, &data[0]); err != nil {
		return fmt.Errorf("set capabilities: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("set no_new_privs: %w", err)
	}
	return nil
}
