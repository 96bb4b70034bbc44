package machine

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/doctor"
)

const connectPatience = time.Second

// connect opens a real connection along some of the paths, concurrently.
func (m *Machine) connect(ctx context.Context, walks []doctor.Walk) {
	var done sync.WaitGroup
	for _, i := range doctor.ToConnect(walks) {
		done.Go(func() {
			walks[i].Connected = true
			if err := m.Connect(ctx, walks[i].To.Addr); err != nil {
				walks[i].Failure = err.Error()
			}
		})
	}
	done.Wait()
}

func connectTo(ctx context.Context, addr netip.AddrPort) error {
	dialer := net.Dialer{Timeout: connectPatience}
	c, err := dialer.DialContext(ctx, "tcp", addr.String())
	if err != nil {
		return err
	}
	return c.Close()
}
