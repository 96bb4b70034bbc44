package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// probe is a measurement by a process in a pod.
type probe struct {
	Kind string `json:"kind"`
	// At contains addresses of Services or endpoints.
	At []netip.AddrPort `json:"at"`
	// Backend is the endpoint that a connection must reach. If it is invalid, any endpoint will do.
	Backend netip.Addr `json:"backend"`
	// Begin is the start time on CLOCK_MONOTONIC.
	Begin time.Duration `json:"begin"`
	Limit time.Duration `json:"limit"`
	Count int           `json:"count"`
	// Port is the source port of the probe "later". If it is 0, the kernel chooses one.
	Port int `json:"port"`
	// APIServer is a process whose CPU time is subtracted, because an API server in a cluster has its own CPUs.
	APIServer int `json:"apiServer"`
}

const (
	// probeStart is the time that a probe has to start. The clock jumps while the guest reads the probe's program from the host.
	probeStart = 20 * time.Second
	// probeRuns is the time for which a probe has run when a change occurs. A running probe keeps the CPU busy, so the clock does not jump.
	probeRuns = 100 * time.Millisecond
)

// With probeVariable, the test binary runs a probe.
const probeVariable = "KUBE_IPVS_BENCH_PROBE"

func TestMain(m *testing.M) {
	text := os.Getenv(probeVariable)
	if text == "" {
		os.Exit(m.Run())
	}
	var p probe
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		panic(err)
	}
	times, err := p.run()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	if err := json.NewEncoder(os.Stdout).Encode(times); err != nil {
		panic(err)
	}
}

func (p probe) on(pod *cluster.Pod) ([]time.Duration, error) {
	text, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	out, err := pod.RunCommand(cluster.Command{
		Args: []string{self}, Env: append(os.Environ(), probeVariable+"="+string(text), "GOGC=off"), Within: p.Limit + 5*time.Minute,
	})
	if err != nil {
		return nil, err
	}
	var times []time.Duration
	return times, json.Unmarshal([]byte(out), &times)
}

func (p probe) run() ([]time.Duration, error) {
	runtime.LockOSThread()
	if late := monotonic() - p.Begin; p.Begin != 0 && late > 0 {
		return nil, fmt.Errorf("the probe started %s late", late)
	}
	time.Sleep(p.Begin - monotonic())
	switch p.Kind {
	case "usable":
		return p.usable()
	case "lands":
		return p.lands()
	case "first":
		return p.first()
	case "later":
		return p.later()
	}
	return nil, fmt.Errorf("unknown probe %q", p.Kind)
}

// usable returns the time until each Service was usable, or 0 if that took longer than the limit.
func (p probe) usable() ([]time.Duration, error) {
	keepBusy()
	times := make([]time.Duration, len(p.At))
	own, err := cluster.UsedCPU(p.APIServer)
	if err != nil {
		return nil, err
	}
	for left := len(p.At); left > 0 && monotonic() < p.Begin+p.Limit; time.Sleep(50 * time.Millisecond) {
		for i, at := range p.At {
			if times[i] == 0 && connect(at, func(int) error { return nil }) == nil {
				now, err := cluster.UsedCPU(p.APIServer)
				if err != nil {
					return nil, err
				}
				times[i] = monotonic() - p.Begin - (now - own)
				left--
			}
		}
	}
	return times, nil
}

// lands returns the time when a connection first reached the backend.
func (p probe) lands() ([]time.Duration, error) {
	giveWay()
	var answer [4]byte
	for monotonic() < p.Begin+p.Limit {
		err := connect(p.At[0], func(fd int) error {
			_, err := unix.Read(fd, answer[:])
			return err
		})
		if err == nil && netip.AddrFrom4(answer) == p.Backend {
			return []time.Duration{monotonic()}, nil
		}
	}
	return nil, fmt.Errorf("no connection to %s reached %s within %s", p.At[0], p.Backend, p.Limit)
}

// keepBusy uses the CPU whenever nothing else does, until the process ends: while the CPU waits for the host's disk, the clock would jump.
func keepBusy() {
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0) + 1)
	go func() {
		runtime.LockOSThread()
		giveWay()
		for turns := uint64(0); ; turns++ {
			spun.Store(turns)
		}
	}()
}

var spun atomic.Uint64

// giveWay lets the thread run only when no other one wants the CPU.
func giveWay() {
	if err := unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE}, 0); err != nil {
		panic(fmt.Errorf("sched_setattr: %w", err))
	}
}

// connect opens a TCP connection, uses it and resets it. A reset connection costs no CPU time later.
func connect(at netip.AddrPort, use func(fd int) error) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for _, err := range []error{
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Usec: 100_000}), // limits connect(2)
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}),
		unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}),
	} {
		if err != nil {
			return err
		}
	}
	if err := unix.Connect(fd, sockaddr(at)); err != nil {
		return err
	}
	return use(fd)
}

// first measures the first packets of UDP flows to each address. No two flows have the same source port: the kernel would choose some ports
// again, and connection tracking would know these flows.
func (p probe) first() ([]time.Duration, error) {
	port := 1023
	return p.each(func(at netip.AddrPort) error {
		for range p.Count {
			port++
			fd, err := datagrams(at, port)
			if err != nil {
				return err
			}
			if err := send(fd, 1); err != nil {
				return err
			}
			unix.Close(fd)
		}
		return nil
	})
}

// later measures the subsequent packets of a UDP flow.
func (p probe) later() ([]time.Duration, error) {
	return p.each(func(at netip.AddrPort) error {
		fd, err := datagrams(at, p.Port)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return send(fd, p.Count)
	})
}

// each measures every address. A first round warms the caches.
func (p probe) each(do func(netip.AddrPort) error) ([]time.Duration, error) {
	var times []time.Duration
	for _, at := range p.At {
		var began time.Duration
		for range 2 {
			began = monotonic()
			if err := do(at); err != nil {
				return nil, fmt.Errorf("%s to %s: %w", p.Kind, at, err)
			}
		}
		times = append(times, monotonic()-began)
	}
	return times, nil
}

// datagrams opens a socket. If port is 0, the kernel chooses the source port.
func datagrams(at netip.AddrPort, port int) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	if err := unix.Bind(fd, &unix.SockaddrInet4{Port: port}); err != nil {
		return 0, fmt.Errorf("bind to port %d: %w", port, err)
	}
	return fd, unix.Connect(fd, sockaddr(at))
}

func send(fd, n int) error {
	packet := []byte("packet")
	for range n {
		if _, err := unix.Write(fd, packet); err != nil && !errors.Is(err, syscall.ECONNREFUSED) {
			return err
		}
	}
	return nil
}

func sockaddr(at netip.AddrPort) unix.Sockaddr {
	return &unix.SockaddrInet4{Addr: at.Addr().As4(), Port: int(at.Port())}
}

func monotonic() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		panic(err)
	}
	return time.Duration(now.Nano())
}
