// Package freeport reserves ports for tests and local servers, and starts small servers for tests.
//
// Sometimes a test must name a port before the tested code listens there. If the kernel chooses the port and the
// test closes it, another socket can take the port before the tested code does, for example the local end of a
// connection. Ports from this package lie outside the range from which the kernel chooses, and each is reserved for
// one process until that process ends.
//
// May import: nothing of this module.
package freeport

import (
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// first is the lowest port that Get returns. The node ports of the tests' Services start at 30000.
const (
	first = 10000
	last  = 29999
)

var (
	mu       sync.Mutex
	reserved = map[uint16]io.Closer{}
	next     uint16
)

// Get returns a port on which no process listens, over TCP or UDP, on any address. The port stays reserved until the
// process ends.
func Get(t testing.TB) uint16 {
	t.Helper()
	port, err := Find()
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// Find is like Get, for callers outside of tests.
func Find() (uint16, error) {
	mu.Lock()
	defer mu.Unlock()
	limit, err := upperLimit()
	if err != nil {
		return 0, err
	}
	if next == 0 {
		next = first + uint16(os.Getpid()*101%(last-first)) // a random start, so that processes rarely compete for the same port
	}
	for range last - first + 1 {
		if next++; next < first || next > limit {
			next = first
		}
		if reserve(next) {
			return next, nil
		}
	}
	return 0, fmt.Errorf("no port from %d to %d is free", first, limit)
}

// reserve reserves the port for this process, and reports whether it succeeded.
func reserve(port uint16) bool {
	mark, err := markAs(port)
	if err != nil {
		return false
	}
	if !unused(port) {
		_ = mark.Close()
		return false
	}
	reserved[port] = mark
	return true
}

// upperLimit returns the last port below the range from which the kernel chooses.
func upperLimit() (uint16, error) {
	const file = "/proc/sys/net/ipv4/ip_local_port_range"
	text, err := os.ReadFile(file)
	if err != nil {
		return last, nil // not Linux, or a container without this file
	}
	fields := strings.Fields(string(text))
	if len(fields) == 0 {
		return 0, fmt.Errorf("%s is empty", file)
	}
	lowest, err := strconv.Atoi(fields[0])
	if err != nil {
		return 0, fmt.Errorf("%s: %w", file, err)
	}
	if lowest <= first {
		return 0, fmt.Errorf("%s: the kernel chooses ports from %d on, so no port from %d is outside its range", file, lowest, first)
	}
	return uint16(min(last, lowest-1)), nil
}
