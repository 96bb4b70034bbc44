//go:build !amd64

package main

// rdtsc is a stub, because QEMU guests run only on amd64.
func rdtsc() uint64 { return 0 }
