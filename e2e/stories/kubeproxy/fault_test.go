package kubeproxy

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// fault makes a program's reads of the node's addresses fail. A seccomp filter notifies this test of every sendto,
// as a container runtime's filter can.
type fault struct {
	on   atomic.Bool
	hits atomic.Int64
}

// fallibleVariable makes this test program execute another program behind a seccomp filter. The variable names the
// socket that receives the filter's file descriptor.
const fallibleVariable = "KUBE_IPVS_FALLIBLE"

func TestMain(m *testing.M) {
	if at := os.Getenv(fallibleVariable); at != "" {
		fmt.Fprintln(os.Stderr, "become", os.Args[1], "with a seccomp filter:", become(at, os.Args[1:]))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func startFallible(t *testing.T, node *cluster.Node, command ...string) (*cluster.Process, *fault) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	at := filepath.Join(t.TempDir(), "filter")
	listen, err := net.ListenUnix("unix", &net.UnixAddr{Name: at, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer listen.Close()
	p, err := node.StartCommand(cluster.Command{
		Args: append([]string{self}, command...),
		Env:  append(os.Environ(), fallibleVariable+"="+at),
	})
	if err != nil {
		t.Fatal(err)
	}
	filter, err := receiveFile(listen)
	if err != nil {
		t.Fatalf("%v\n%s", err, p.Log())
	}
	program, err := unix.PidfdOpen(p.PID, 0)
	if err != nil {
		t.Fatalf("pidfd of %s: %v", p.Name, err)
	}
	f := &fault{}
	go func() {
		defer unix.Close(filter)
		defer unix.Close(program)
		f.judge(filter, program, p.PID)
	}()
	return p, f
}

func receiveFile(listen *net.UnixListener) (int, error) {
	if err := listen.SetDeadline(time.Now().Add(patience)); err != nil {
		return 0, err
	}
	conn, err := listen.AcceptUnix()
	if err != nil {
		return 0, fmt.Errorf("receive the filter: %w", err)
	}
	defer conn.Close()
	control := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := conn.ReadMsgUnix(make([]byte, 1), control)
	if err != nil {
		return 0, fmt.Errorf("receive the filter: %w", err)
	}
	messages, err := unix.ParseSocketControlMessage(control[:n])
	if err != nil || len(messages) != 1 {
		return 0, fmt.Errorf("receive the filter: %d messages, %w", len(messages), err)
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	if err != nil {
		return 0, fmt.Errorf("receive the filter: %w", err)
	}
	return fds[0], nil
}

// become installs a filter on this thread and executes the program.
func become(at string, command []string) error {
	runtime.LockOSThread()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: at, Net: "unix"})
	if err != nil {
		return err
	}
	filter, err := notifyOfSends()
	if err != nil {
		return fmt.Errorf("install the filter: %w", err)
	}
	if _, _, err := conn.WriteMsgUnix([]byte{0}, unix.UnixRights(filter), nil); err != nil {
		return fmt.Errorf("send the filter: %w", err)
	}
	if err := os.Unsetenv(fallibleVariable); err != nil {
		return err
	}
	return syscall.Exec(command[0], command, os.Environ())
}

// notifyOfSends installs a filter that reports calls of sendto. (For TCP, Go uses write instead.)
func notifyOfSends() (int, error) {
	const numberOfCall = 0 // offset in struct seccomp_data
	rules := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: numberOfCall},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_SENDTO, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	program := unix.SockFprog{Len: uint16(len(rules)), Filter: &rules[0]}
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_NEW_LISTENER,
		uintptr(unsafe.Pointer(&program)))
	if errno != 0 {
		return 0, errno
	}
	return int(fd), nil
}

// These are the kernel's struct seccomp_notif and struct seccomp_notif_resp.
type (
	notification struct {
		id            uint64
		thread, flags uint32
		call          int32
		arch          uint32
		instruction   uint64
		args          [6]uint64
	}
	verdict struct {
		id           uint64
		value        int64
		error, flags int32
	}
)

// judge answers the filter's notifications until the last filtered process exits.
func (f *fault) judge(filter, program, pid int) {
	for {
		waiting := []unix.PollFd{{Fd: int32(filter), Events: unix.POLLIN}}
		if _, err := unix.Poll(waiting, -1); err != nil && err != unix.EINTR {
			return
		}
		if waiting[0].Revents&unix.POLLIN == 0 {
			if waiting[0].Revents != 0 {
				return
			}
			continue
		}
		var asked notification
		if ioctl(filter, unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&asked)) != 0 {
			continue // the process has ended
		}
		answer := verdict{id: asked.id, flags: unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE}
		if f.on.Load() && readsAddresses(asked, program, pid) {
			f.hits.Add(1)
			answer = verdict{id: asked.id, error: -int32(unix.ENOBUFS)}
		}
		_ = ioctl(filter, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&answer))
	}
}

func ioctl(fd int, request uintptr, arg unsafe.Pointer) syscall.Errno {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(arg))
	return errno
}

// readsAddresses reports whether a thread of the program itself is about to request interface addresses.
func readsAddresses(asked notification, program, pid int) bool {
	if _, err := os.Stat(fmt.Sprintf("/proc/%d/task/%d", pid, asked.thread)); err != nil {
		return false
	}
	header := make([]byte, unix.SizeofNlMsghdr)
	if uint64(len(header)) > asked.args[2] {
		return false
	}
	local := []unix.Iovec{{Base: &header[0], Len: uint64(len(header))}}
	remote := []unix.RemoteIovec{{Base: uintptr(asked.args[1]), Len: len(header)}}
	if n, err := unix.ProcessVMReadv(int(asked.thread), local, remote, 0); err != nil || n != len(header) {
		return false
	}
	return binary.NativeEndian.Uint16(header[4:]) == unix.RTM_GETADDR && isRouteSocket(program, int(asked.args[0]))
}

// The message types have different meanings in other netlink families.
func isRouteSocket(program, fd int) bool {
	socket, err := unix.PidfdGetfd(program, fd, 0)
	if err != nil {
		return false
	}
	defer unix.Close(socket)
	domain, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil || domain != unix.AF_NETLINK {
		return false
	}
	protocol, err := unix.GetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_PROTOCOL)
	return err == nil && protocol == unix.NETLINK_ROUTE
}
