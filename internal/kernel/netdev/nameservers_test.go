package netdev

import (
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

func TestNameservers(t *testing.T) {
	stub, upstream := filepath.Join(t.TempDir(), "resolv.conf"), filepath.Join(t.TempDir(), "resolv.conf")
	for file, text := range map[string]string{
		stub: "# nameserver 192.0.2.9\nnameserver 127.0.0.53\noptions edns0\nnameserver fe80::1%eth0\nnameserver\nnameserver dns\n",
		upstream: "nameserver 203.0.113.53\n nameserver\t2001:db8::53 # the second\nnameserver ::ffff:203.0.113.54\nnameserver 192.0.2.1\n" +
			"search example.org\n",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	gateway := netip.MustParseAddr("192.0.2.1")
	network := kernel.Network{gateway: {Kind: kernel.Gateway}}
	addNameservers(network, openResolverFiles([]string{stub, filepath.Join(t.TempDir(), "missing"), upstream}))
	want := kernel.Network{gateway: {Kind: kernel.Gateway}}
	for _, addr := range []string{"203.0.113.53", "203.0.113.54", "2001:db8::53"} {
		want[netip.MustParseAddr(addr)] = kernel.NetworkRole{Kind: kernel.Nameserver}
	}
	if d := cmp.Diff(want, network, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{})); d != "" {
		t.Errorf("-want +have\n%s", d)
	}
}

func TestNameserversWhileAFileHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type step struct {
			name, text string
			failure    error
			hangs      time.Duration
			want       string
		}
		var now atomic.Pointer[step]
		file := &resolverFile{read: func() ([]byte, error) {
			s := now.Load()
			time.Sleep(s.hangs)
			return []byte(s.text), s.failure
		}}
		for _, step := range []step{
			{name: "read", text: "nameserver 203.0.113.53\n", want: "[203.0.113.53]"},
			{name: "unreadable", failure: syscall.EIO, want: "[203.0.113.53]"},
			{name: "hangs", text: "nameserver 203.0.113.54\n", hangs: time.Hour, want: "[203.0.113.53]"},
			{name: "still hangs", text: "nameserver 203.0.113.55\n", want: "[203.0.113.53]"},
			{name: "ended, and unreadable", failure: syscall.EIO, want: "[203.0.113.54]"},
			{name: "read again", text: "nameserver 203.0.113.55\n", want: "[203.0.113.55]"},
			{name: "gone", failure: fs.ErrNotExist, want: "[]"},
		} {
			if step.name == "ended, and unreadable" {
				time.Sleep(time.Hour)
				synctest.Wait()
			}
			now.Store(&step)
			if have := fmt.Sprint(file.nameservers()); have != step.want {
				t.Errorf("%s: %s, want %s", step.name, have, step.want)
			}
		}
	})
}
