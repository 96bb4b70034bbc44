package forward

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"
)

// TestStickyClientsAreBounded: a scan from many addresses does not fill the memory, and expired clients are deleted.
func TestStickyClientsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b balancer
		e := []Endpoint{{netip.MustParseAddrPort("192.0.2.1:80"), 1}, {netip.MustParseAddrPort("192.0.2.2:80"), 1}}
		b.set(e, time.Minute)
		client := netip.MustParseAddr("10.0.0.0")
		for range 3 * maxSticky {
			client = client.Next()
			b.pick(client, time.Now(), nil)
		}
		if len(b.sticky) > maxSticky {
			t.Errorf("%d clients are remembered", len(b.sticky))
		}
		first, _ := b.pick(client, time.Now(), nil)
		time.Sleep(time.Minute + time.Second)
		if again, _ := b.pick(client, time.Now(), nil); again == first {
			t.Error("a choice outlived its affinity")
		}
	})
}
