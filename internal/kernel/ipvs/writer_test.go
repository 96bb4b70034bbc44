package ipvs

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
)

func TestReadDuringWrites(t *testing.T) {
	b, ns := openBackend(t)
	want, ops := randomTable(rand.New(rand.NewPCG(9, 10)), 500)
	must(t, b, ops...)
	stop := churn(t, ns)
	defer stop()
	const reads = 50
	missed := 0
	for range reads {
		time.Sleep(time.Millisecond) // without a pause, a virtual clock would not advance
		got := readAll(t, b)
		for key, s := range want {
			other, ok := got[key]
			if !ok {
				missed++
				continue
			}
			if s.Server != other.Server || !slices.Equal(s.Destinations, other.Destinations) {
				t.Fatal(cmp.Diff(s, other, compareAddrs))
			}
		}
	}
	looked, err := b.Lookup(t.Context(), slices.Collect(maps.Keys(want)))
	if err != nil {
		t.Fatal(err)
	}
	if diff := diffTables(want, looked); diff != "" {
		t.Error(diff)
	}
	t.Logf("%d reads missed %d stable servers", reads, missed)
}

func churn(t *testing.T, ns *labtest.Namespace) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		ended <- churnUntil(ctx, ns.FD())
	}()
	return func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

func churnUntil(ctx context.Context, ns int) error {
	if err := unix.Setns(ns, unix.CLONE_NEWNET); err != nil {
		return err
	}
	b, err := New()
	if err != nil {
		return err
	}
	defer b.Close()
	for seed := uint64(100); ctx.Err() == nil; seed++ {
		other, ops := randomTable(rand.New(rand.NewPCG(seed, seed)), 50)
		for key := range other {
			ops = append(ops, op(kernel.Delete, kernel.Server{Key: key}))
		}
		if err := errors.Join(b.Apply(context.Background(), ops)...); err != nil {
			return err
		}
		time.Sleep(time.Millisecond) // without a pause, a virtual clock would not advance
	}
	return nil
}
