package bench

import (
	"net/http"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kube-ipvs/kube-ipvs/internal/watch/watchtest"
)

const (
	// away is how long the API server does not answer.
	away = time.Hour
	// podsOfNode is the default limit of a kubelet.
	podsOfNode = 110
	booting    = 30 * time.Second
	// observed is the time between two observations of a storm's end.
	observed = 50 * time.Millisecond
)

// updated describes the endpoints of an ordinary Service.
type updated struct{ replaced, endpoints int }

// storms measures periods with many changes, one after another. update sends an EndpointSlice of an ordinary Service.
func (b *bench) storms(t *testing.T, result *Result) {
	last := map[int]updated{}
	for n := range b.services {
		last[n] = updated{0, endpointsEach}
	}
	for _, storm := range []struct {
		name string
		run  func(update func(n, replaced, endpoints int))
	}{
		{"all endpoints are replaced, two of each Service at a time", func(update func(n, replaced, endpoints int)) {
			for replaced := 2; replaced <= endpointsEach; replaced += 2 {
				for _, n := range b.random.Perm(b.services) {
					update(n, replaced, endpointsEach)
				}
			}
		}},
		{"all endpoints disappear", func(update func(n, replaced, endpoints int)) {
			for n := range b.services {
				update(n, 0, 0)
			}
		}},
		{"all endpoints return", func(update func(n, replaced, endpoints int)) {
			for n := range b.services {
				update(n, 0, endpointsEach)
			}
		}},
		{"110 pods of a node become ready within 30 s", func(update func(n, replaced, endpoints int)) {
			for n := range podsOfNode {
				update(n%b.services, 0, endpointsEach+1)
				time.Sleep(booting / podsOfNode)
			}
		}},
		{"the API server is away for an hour", func(func(n, replaced, endpoints int)) {
			b.api.SetFault(func(w http.ResponseWriter, _ *http.Request) bool {
				watchtest.Refuse(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable)
				return true
			})
			b.api.CutWatches()
			time.Sleep(away)
			b.api.SetFault(nil)
		}},
	} {
		measured := Storm{Name: storm.name}
		used, began := b.used(t), monotonic()
		storm.run(func(n, replaced, endpoints int) {
			measured.Updates++
			last[n] = updated{replaced, endpoints}
			b.api.Put(ordinarySlice(n, replaced, endpoints))
		})
		measured.Took = InSeconds(b.over(t, last) - began)
		measured.CPU = InSeconds(b.used(t) - used)
		result.Storms = append(result.Storms, measured)
	}
}

// over waits until the kernel serves everything as it was updated last, and the program is idle. It returns when the program became idle.
func (b *bench) over(t *testing.T, last map[int]updated) time.Duration {
	t.Helper()
	b.flips++
	to := b.flips % 2
	b.api.Put(flippedSlice(to)) // the API server sends this update after all others
	expected := map[netip.AddrPort][]netip.Addr{flippedService: {flipped[to]}}
	for i := range min(sampled, b.services) {
		n := i * b.services / min(sampled, b.services)
		expected[ordinary(n)] = addresses(n, last[n].replaced, last[n].endpoints)
	}
	e := ending{limit: monotonic() + changeLimit}
	for {
		left, err := b.serves(expected)
		if err != nil {
			t.Fatal(err)
		}
		over, err := e.observe(monotonic(), b.used(t), len(left) == 0)
		if err != nil {
			t.Fatalf("%v; not served as updated: %v", err, left)
		}
		if over {
			return e.since
		}
	}
}

// serves removes the Services that are served as expected, and returns the others.
func (b *bench) serves(expected map[netip.AddrPort][]netip.Addr) (map[netip.AddrPort][]netip.Addr, error) {
	err := b.client.Do(func() error {
		sockets := map[netip.AddrPort]int{}
		defer func() {
			for _, fd := range sockets {
				unix.Close(fd)
			}
		}()
		for at := range expected {
			fd, err := open(at)
			if err != nil {
				return err
			}
			sockets[at] = fd
		}
		time.Sleep(observed)
		for at, fd := range sockets {
			var answer [4]byte
			failure, _ := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR) // 0 while the connection is pending
			n, _ := unix.Read(fd, answer[:])
			if endpoints := expected[at]; len(endpoints) == 0 && failure != 0 || n == len(answer) && slices.Contains(endpoints, netip.AddrFrom4(answer)) {
				delete(expected, at)
			}
		}
		return nil
	})
	return expected, err
}

// open begins to open a TCP connection. Closing the socket resets the connection.
func open(at netip.AddrPort) (fd int, err error) {
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return 0, err
	}
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
		return 0, err
	}
	_ = unix.Connect(fd, sockaddr(at)) // the socket's state shows whether it is connected
	return fd, nil
}
