//go:build pause

package live

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nft/balance"
)

// A build with the tag pause exposes clients to every state between two writes. On the tests' virtual clock, an update takes no time, so
// no packet arrives during it. In this build, time passes after each transaction with the kernel. The process can also kill itself at
// that point.
const (
	pauseAfterWrite = 25 * time.Millisecond

	// killAfter names the environment variable with the number of the write after which the process kills itself.
	killAfter = "KUBE_IPVS_KILL_AFTER"
)

var killer = newCountdown(os.Getenv(killAfter))

func applyTo(ctx context.Context, b applier, ops []kernel.Op) []error {
	errs := make([]error, 0, len(ops))
	for from := 0; from < len(ops); {
		to := from + transaction(b, ops[from:])
		errs = append(errs, b.Apply(ctx, ops[from:to])...)
		killer.count()
		time.Sleep(pauseAfterWrite)
		from = to
	}
	return errs
}

// transaction returns how many operations reach the kernel together.
func transaction(b applier, ops []kernel.Op) int {
	switch b.(type) {
	case *balance.Balancer:
		return len(ops)
	case *nft.Backend:
		n := 0
		for n < len(ops) && ops[n].KindOf() == kernel.KindMember {
			n++
		}
		return max(n, 1)
	}
	return 1
}

type countdown struct{ left atomic.Int64 }

func newCountdown(text string) *countdown {
	if text == "" {
		return &countdown{}
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		fmt.Fprintf(os.Stderr, "%s=%q: use 1 or more\n", killAfter, text)
		os.Exit(2)
	}
	c := &countdown{}
	c.left.Store(int64(n))
	return c
}

func (c *countdown) count() {
	if c.left.Add(-1) == 0 {
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {} // the signal may arrive a moment later
	}
}
