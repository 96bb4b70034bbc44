package memory

import (
	"context"
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"
	"time"

	"go.uber.org/zap"
	"pgregory.net/rapid"
)

// chunk is about as large as the agent's typical objects.
type chunk [512]byte

func chunks(bytes int) []*chunk {
	all := make([]*chunk, bytes/len(chunk{}))
	for i := range all {
		all[i] = new(chunk)
	}
	return all
}

// held returns the memory that the runtime has obtained from the operating system, in bytes.
func held() int64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.Sys - m.HeapReleased)
}

// start calls Run as if the agent had just become ready.
func start(t *testing.T, environment map[string]string) {
	t.Helper()
	percent, limit := debug.SetGCPercent(minPercent), debug.SetMemoryLimit(-1)
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan struct{})
	close(ready)
	go func() {
		defer close(done)
		Run(ctx, ready, func(name string) string { return environment[name] }, zap.NewNop())
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		debug.SetGCPercent(percent)
		debug.SetMemoryLimit(limit)
	})
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("timed out after 10 s: " + what)
		}
	}
}

// TestStartupGarbageIsReturned: after startup, the runtime holds at most twice the live heap plus 12 MB.
func TestStartupGarbageIsReturned(t *testing.T) {
	const live = 40 << 20
	kept := chunks(live)
	runtime.GC()
	bound := 2*int64(read().live) + 12<<20
	debug.SetGCPercent(400)
	chunks(4 * live)
	if held() < bound {
		t.Fatalf("the test created no garbage: the runtime holds %d MiB", held()>>20)
	}
	start(t, nil)
	eventually(t, "memory is returned", func() bool { return held() <= bound })
	eventually(t, "a limit is set", func() bool { return debug.SetMemoryLimit(-1) < bound })
	runtime.KeepAlive(kept)
}

// TestLimitFollowsLiveHeap: a limit set for a small heap does not prevent growth.
func TestLimitFollowsLiveHeap(t *testing.T) {
	start(t, nil)
	eventually(t, "a limit is set", func() bool { return debug.SetMemoryLimit(-1) < 1<<30 })
	kept := chunks(100 << 20)
	eventually(t, "the limit is higher", func() bool { return debug.SetMemoryLimit(-1) > 100<<20 })
	runtime.KeepAlive(kept)
}

func TestEnvironmentTakesPrecedence(t *testing.T) {
	const limit = 1 << 40
	start(t, map[string]string{"GOMEMLIMIT": "1TiB", "GOGC": "300"})
	debug.SetMemoryLimit(limit)
	debug.SetGCPercent(300)
	for range 3 {
		runtime.GC()
		time.Sleep(10 * time.Millisecond)
	}
	if got := debug.SetMemoryLimit(-1); got != limit {
		t.Errorf("limit %d", got)
	}
	if got := debug.SetGCPercent(300); got != 300 {
		t.Errorf("GOGC %d", got)
	}
}

// TestWhatStartsCollections: with GOGC, the runtime collects every two minutes, even if the agent is idle. The agent turns it off only where its own limit starts collections.
func TestWhatStartsCollections(t *testing.T) {
	for name, c := range map[string]struct {
		environment map[string]string
		want        uint64
	}{
		"the limit":                  {nil, math.MaxUint64}, // off
		"GOGC, if GOMEMLIMIT is set": {map[string]string{"GOMEMLIMIT": "1TiB"}, goPercent},
	} {
		t.Run(name, func(t *testing.T) {
			start(t, c.environment)
			eventually(t, "GOGC is set", func() bool {
				gogc := []metrics.Sample{{Name: "/gc/gogc:percent"}}
				metrics.Read(gogc)
				return gogc[0].Value.Uint64() == c.want
			})
		})
	}
}

// TestOwnGOGC: the agent sets no limit, which would start collections before the administrator's GOGC does.
func TestOwnGOGC(t *testing.T) {
	const limit = 1 << 40
	debug.SetMemoryLimit(limit)
	start(t, map[string]string{"GOGC": "300"})
	for range 3 {
		runtime.GC()
		time.Sleep(150 * time.Millisecond)
	}
	if got := debug.SetMemoryLimit(-1); got != limit {
		t.Errorf("limit %d", got)
	}
}

// TestTuning: for any measurements, the limit leaves room for the growth allowed by the percentage. The heap of an idle agent
// grows by at most a fifth and 8 MB, and an agent with expensive collections collects less often.
func TestTuning(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var now tuning
		live, other := rapid.Uint64Range(0, 1<<40).Draw(t, "live"), rapid.Uint64Range(0, 1<<40).Draw(t, "other")
		for range rapid.IntRange(0, 20).Draw(t, "collections") {
			cost := rapid.Int64Range(-1, 1<<40).Draw(t, "cost")
			elapsed := rapid.Int64Range(-1, 1<<40).Draw(t, "elapsed")
			before := max(now.percent, minPercent)
			now = now.next(size{live, other}, time.Duration(cost), time.Duration(elapsed))
			if now.percent < minPercent || now.percent > maxPercent || now.limit < int64(other)+int64(live)*int64(100+now.percent)/100 {
				t.Fatalf("%+v is out of bounds for %d live bytes", now, live)
			}
			if elapsed > 0 && float64(cost) > maxCost*float64(elapsed) && now.percent <= before && before < maxPercent {
				t.Fatalf("collections cost too much, but the percentage changed from %[2]d%% to %[1]d%%", now.percent, before)
			}
		}
		for range 7 {
			now = now.next(size{live, other}, 0, time.Minute)
		}
		if now.limit > int64(live)*6/5+int64(other)+spare {
			t.Fatalf("the limit of an idle agent is too high: %+v with %d live bytes", now, live)
		}
	})
}
