package wire

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

func TestCountingIsBounded(t *testing.T) {
	labtest.NetNSNoIPVS(t)
	c, err := Dial()
	labtest.Opened(t, c, err)
	if err := c.Commit(t.Context(), []nlbatch.Request{
		NewTable(), Set("S").Create(0, Layout{Key: Key{Address(inet.IPv4)}, Size: 10}),
		Set("S").Request(unix.NFT_MSG_NEWSETELEM, unix.NLM_F_CREATE, Element{Key: "\x0a\x60\x00\x01"}),
	}); err != nil {
		t.Fatal(err)
	}
	for wanted, want := range map[bool]int{true: 1, false: kernel.Uncounted} {
		if n, err := c.count(t.Context(), ListedSet{Name: "S", Elements: kernel.Uncounted}, wanted); err != nil || n != want {
			t.Errorf("wanted %t: %d, %v", wanted, n, err)
		}
	}
	began, later := time.Unix(1000, 0), time.Unix(1000, 500)
	for took, want := range map[time.Duration]time.Time{countFree - 1: {}, 20 * time.Millisecond: began.Add(2 * time.Second)} {
		if again := countAgain(began, took, time.Time{}); !again.Equal(want) {
			t.Errorf("after a count that took %s, the next count is allowed at %s", took, again)
		}
	}
	if again := countAgain(began, time.Second, later); again != later {
		t.Errorf("nothing was counted, but the next count was moved to %s", again)
	}
}
