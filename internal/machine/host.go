package machine

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/live"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/netdev"
)

type thisHost struct{ ctx context.Context }

const (
	// mostOfFile is the maximum size of a file. mostOfLog is how many bytes Tail reads from the end of a log.
	mostOfFile = 4 << 20
	mostOfLog  = 256 << 10
	// oneRead is the size of a read. A sysctl with a long list returns as much as fits into the first read, and nothing into later ones.
	oneRead = 256 << 10
)

// ReadFile fails for a file that is too large, because truncated content could be mistaken for the whole file.
func (thisHost) ReadFile(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(bufio.NewReaderSize(io.LimitReader(f, mostOfFile+1), oneRead))
	switch {
	case errors.Is(err, unix.ESRCH): // the process has ended
		return nil, fs.ErrNotExist
	case err == nil && len(text) > mostOfFile:
		return nil, fmt.Errorf("%s is larger than %d MiB", name, mostOfFile>>20)
	}
	return text, err
}

func (thisHost) Tail(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if _, err := f.Seek(max(0, info.Size()-mostOfLog), io.SeekStart); err != nil {
		return nil, err
	}
	return io.ReadAll(io.LimitReader(f, mostOfLog))
}

// KernelLog uses a system call: /dev/kmsg does not exist in every container, and starts with the oldest message.
func (thisHost) KernelLog() (string, error) {
	const readAll = 3 // SYSLOG_ACTION_READ_ALL
	text := make([]byte, mostOfLog)
	n, err := unix.Klogctl(readAll, text)
	return string(text[:max(n, 0)]), err
}

func (thisHost) Names(dir string) ([]string, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	return d.Readdirnames(-1)
}

func (thisHost) Interfaces() ([]kernel.Interface, error) {
	return readUsing(netdev.New, (*netdev.Backend).Interfaces)
}

func (h thisHost) Pods() ([]kernel.Pod, error) {
	return readUsing(netdev.New, func(b *netdev.Backend) ([]kernel.Pod, error) { return b.Pods(h.ctx) })
}

func (h thisHost) Neighbors() ([]kernel.Neighbor, error) {
	return readUsing(netdev.New, func(b *netdev.Backend) ([]kernel.Neighbor, error) { return b.Neighbors(h.ctx) })
}

func (h thisHost) Queues() ([]kernel.Queue, error) {
	return readUsing(netdev.New, func(b *netdev.Backend) ([]kernel.Queue, error) { return b.Queues(h.ctx) })
}

func (thisHost) APIServer() string {
	host, port := os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT")
	if host == "" || port == "" {
		return ""
	}
	return net.JoinHostPort(host, port)
}

// ServerCertificates does not verify the certificates, because doctor reports their problems. It sends no data after
// the handshake.
func (h thisHost) ServerCertificates(address, serverName string) (chain [][]byte, err error) {
	ctx, cancel := context.WithTimeout(h.ctx, 3*time.Second)
	defer cancel()
	conn, err := (&tls.Dialer{Config: &tls.Config{
		InsecureSkipVerify: true, ServerName: serverName,
		VerifyPeerCertificate: func(raw [][]byte, _ [][]*x509.Certificate) error { // called before the server requests a client certificate
			chain = raw
			return nil
		},
	}}).DialContext(ctx, "tcp", address)
	if err == nil {
		err = conn.Close()
	}
	if len(chain) > 0 {
		return chain, nil
	}
	return nil, err
}

// ConnectPrograms counts the eBPF programs in effect for the cgroup at /sys/fs/cgroup, which include the programs
// of its ancestors.
func (thisHost) ConnectPrograms() (count int, err error) {
	const (
		programQuery = 16 // BPF_PROG_QUERY
		effective    = 1  // BPF_F_QUERY_EFFECTIVE
		connect4     = 10 // BPF_CGROUP_INET4_CONNECT
		connect6     = 11 // BPF_CGROUP_INET6_CONNECT
	)
	for _, dir := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		var info unix.Statfs_t
		if err = unix.Statfs(dir, &info); err != nil || info.Type != unix.CGROUP2_SUPER_MAGIC {
			err = cmp.Or(err, fmt.Errorf("%s is not a cgroup2 file system", dir))
			continue
		}
		d, err := os.Open(dir)
		if err != nil {
			return 0, err
		}
		defer d.Close()
		for _, hook := range []uint32{connect4, connect6} {
			query := struct {
				target, hook, flags, attached uint32
				programs                      uint64
				count, _                      uint32
			}{target: uint32(d.Fd()), hook: hook, flags: effective}
			if _, _, errno := unix.Syscall(unix.SYS_BPF, programQuery, uintptr(unsafe.Pointer(&query)), unsafe.Sizeof(query)); errno != 0 {
				return 0, fmt.Errorf("query the eBPF programs of %s: %w", dir, errno)
			}
			count += int(query.count)
		}
		return count, nil
	}
	return 0, err
}

func (h thisHost) Leftovers() ([]kernel.Leftover, error) {
	found, err := live.FindLeftovers(h.ctx, compile.Chains)
	return found.Objects, err
}

func (thisHost) ClockSynchronized() (bool, error) {
	const timeError = 5 // TIME_ERROR in linux/timex.h
	state, err := unix.Adjtimex(&unix.Timex{})
	return state != timeError, err
}

// Get reads only the start of a response: the metrics of a large node can be megabytes.
func (h thisHost) Get(url string) (int, string, error) { return get(h.ctx, url, 1024, 3*time.Second) }

func get(ctx context.Context, url string, longest int64, patience time.Duration) (status int, body string, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(io.LimitReader(response.Body, longest))
	return response.StatusCode, string(text), err
}

// CheckInterface returns an error if this network namespace lacks the interface. An empty name means any interface.
func (m *Machine) CheckInterface(ctx context.Context, name string) error {
	if name == "" {
		return nil
	}
	existing, err := m.Host(ctx).Interfaces()
	var names []string
	for _, i := range existing {
		names = append(names, i.Name)
	}
	if err == nil && !slices.Contains(names, name) {
		err = fmt.Errorf("--interface %q: use an interface in this command's network namespace: %s", name, strings.Join(names, ", "))
	}
	return err
}
