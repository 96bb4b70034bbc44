package agent_test

import (
	"context"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/kerneltest"
)

// attributing is a kernel that knows which changes the agent made, as nftables does. A check takes a while.
type attributing struct {
	*kerneltest.Fake
	touched atomic.Bool // by another program
	read    atomic.Int32
}

func (k *attributing) Summarize(ctx context.Context, sample kernel.Sample) (*kernel.Summary, error) {
	s, err := k.Fake.Summarize(ctx, sample)
	if err != nil {
		return nil, err
	}
	if k.touched.Swap(false) || sample.All {
		k.read.Add(1)
	} else {
		s.Untouched, s.ServersUntouched, s.Sets, s.Rules, s.IPv4Servers = true, true, nil, nil, kernel.Uncounted
	}
	time.Sleep(300 * time.Millisecond)
	return s, nil
}

func TestChecksOfWhatOthersTouched(t *testing.T) {
	calmBubble(t, func(w *world) {
		checking(w)
		k := &attributing{Fake: w.fake}
		w.kernel = k
		for i := range 12 {
			w.put(compiletest.Service(fmt.Sprint("svc-", i), addressOf(i), "10.244.0.1"))
		}
		w.start()
		w.sleep(3500 * time.Millisecond)
		for i := range 50 {
			w.put(web(fmt.Sprintf("10.244.1.%d", i+1)))
			w.sleep(700 * time.Millisecond)
		}
		if n := k.read.Load(); n > 2 { // the first one, and another if the agent wrote meanwhile
			t.Errorf("the agent's own changes caused %d complete checks", n)
		}

		// The agent writes during the only check that could notice the flush at once.
		w.sleep(200 * time.Millisecond)
		w.damage(func(f *kerneltest.Fake) error { return f.FlushSet("KIPVS-4-CLUSTER-IP") })
		k.touched.Store(true)
		for i := range 10 {
			w.put(web(fmt.Sprintf("10.244.2.%d", i+1)), compiletest.Service(fmt.Sprint("new-", i), fmt.Sprintf("10.96.2.%d", i+1), "10.244.0.1"))
			w.sleep(100 * time.Millisecond)
		}
		w.sleep(4 * time.Second)
		w.is()

		// No count shows this change.
		w.damage(func(f *kerneltest.Fake) error {
			return f.DelDestination(kernel.ServerDestination{
				Server:      kernel.ServerKey{Addr: netip.AddrPortFrom(netip.MustParseAddr(addressOf(7)), 80), Protocol: inet.TCP},
				Destination: kernel.Destination{Addr: netip.MustParseAddrPort("10.244.0.1:8080")},
			})
		})
		k.touched.Store(true)
		w.sleep(10 * time.Second) // four of 23 virtual servers a second
		w.is()
	})
}
