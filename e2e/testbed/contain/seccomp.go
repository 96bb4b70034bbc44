package main

import (
	"fmt"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// refused lists system calls that the default profiles of Docker, containerd and CRI-O deny to a container. It
// contains only calls that exist on every architecture on which these tests run. See
// https://docs.docker.com/engine/security/seccomp/ for the reasons.
var refused = []uint32{
	unix.SYS_ACCT, unix.SYS_ADD_KEY, unix.SYS_BPF, unix.SYS_CLOCK_ADJTIME, unix.SYS_CLOCK_SETTIME, unix.SYS_DELETE_MODULE,
	unix.SYS_FINIT_MODULE, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSOPEN, unix.SYS_FSPICK, unix.SYS_INIT_MODULE,
	unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER, unix.SYS_IO_URING_SETUP, unix.SYS_KCMP, unix.SYS_KEXEC_FILE_LOAD,
	unix.SYS_KEXEC_LOAD, unix.SYS_KEYCTL, unix.SYS_MBIND, unix.SYS_MOUNT, unix.SYS_MOUNT_SETATTR, unix.SYS_MOVE_MOUNT,
	unix.SYS_MOVE_PAGES, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_OPEN_TREE, unix.SYS_PERF_EVENT_OPEN, unix.SYS_PIVOT_ROOT,
	unix.SYS_QUOTACTL, unix.SYS_REBOOT, unix.SYS_REQUEST_KEY, unix.SYS_SETDOMAINNAME, unix.SYS_SETHOSTNAME, unix.SYS_SETNS,
	unix.SYS_SETTIMEOFDAY, unix.SYS_SET_MEMPOLICY, unix.SYS_SWAPOFF, unix.SYS_SWAPON, unix.SYS_SYSLOG, unix.SYS_UMOUNT2,
	unix.SYS_UNSHARE, unix.SYS_USERFAULTFD, unix.SYS_VHANGUP,
}

// newNamespaces contains the clone flags that create namespaces.
const newNamespaces = unix.CLONE_NEWCGROUP | unix.CLONE_NEWIPC | unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID |
	unix.CLONE_NEWUSER | unix.CLONE_NEWUTS

// These are offsets in struct seccomp_data, a filter's view of a system call. The lower half of an argument comes
// first, because the machines are little-endian.
const (
	offsetNumber  = 0
	offsetMachine = 4
	offsetFirst   = 16
)

var machines = map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}

func installFilter() error {
	machine, ok := machines[runtime.GOARCH]
	if !ok {
		return fmt.Errorf("no seccomp filter for %s", runtime.GOARCH)
	}
	instructions := filter(machine)
	program := unix.SockFprog{Len: uint16(len(instructions)), Filter: &instructions[0]}
	_, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return fmt.Errorf("install the seccomp filter: %w", errno)
	}
	return nil
}

func filter(machine uint32) []unix.SockFilter {
	f := []unix.SockFilter{load(offsetMachine), skipUnless(unix.BPF_JEQ, machine, 1), skip(1), refuse(unix.EPERM), load(offsetNumber)}
	// Go and C libraries fall back to clone, whose flags a filter can inspect.
	f = append(f, skipUnless(unix.BPF_JEQ, unix.SYS_CLONE3, 1), refuse(unix.ENOSYS))
	for _, number := range refused {
		f = append(f, skipUnless(unix.BPF_JEQ, number, 1), refuse(unix.EPERM))
	}
	f = append(f, skipUnless(unix.BPF_JEQ, unix.SYS_CLONE, 4),
		load(offsetFirst), skipUnless(unix.BPF_JSET, newNamespaces, 1), refuse(unix.EPERM), allow())
	f = append(f, skipUnless(unix.BPF_JEQ, unix.SYS_SOCKET, 3),
		load(offsetFirst), skipUnless(unix.BPF_JEQ, unix.AF_VSOCK, 1), refuse(unix.EPERM))
	return append(f, allow())
}

func load(offset uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: offset}
}

// If the comparison is false, skipUnless skips the next instructions.
func skipUnless(comparison uint16, value uint32, instructions uint8) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | comparison | unix.BPF_K, K: value, Jf: instructions}
}

func skip(instructions uint32) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JA, K: instructions}
}

func refuse(errno unix.Errno) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ERRNO | uint32(errno)}
}

func allow() unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW}
}
