package memory

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"
)

// Run waits until the agent is ready and returns unused memory to the operating system. Then it adapts the heap's
// growth and limit after each collection, until the context ends. It does not override GOGC and GOMEMLIMIT from the
// environment; if GOGC is set, it sets no limit either, because the limit would start collections before GOGC does.
func Run(ctx context.Context, ready <-chan struct{}, getenv func(string) string, log *zap.Logger) {
	select {
	case <-ctx.Done():
		return
	case <-ready:
	}
	// Otherwise, the kernel would replace the returned memory by new huge pages within minutes.
	if err := unix.Prctl(unix.PR_SET_THP_DISABLE, 1, 0, 0, 0); err != nil {
		log.Debug("transparent huge pages cannot be disabled", zap.Error(err))
	}
	debug.FreeOSMemory() // also runs a collection
	log.Debug("returned memory to the operating system")
	k := &keeper{ownPercent: getenv("GOGC") == "", ownLimit: getenv("GOGC") == "" && getenv("GOMEMLIMIT") == "", usage: read()}
	k.adapt()
	collected := make(chan struct{}, 1)
	notify(ctx, collected)
	quiet := time.NewTicker(quietInterval)
	defer quiet.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-collected:
			if !swept(ctx) {
				return
			}
			k.adapt()
		case <-quiet.C:
			if k.tuning.percent > minPercent && time.Since(k.usage.at) >= quietInterval/2 {
				k.adapt() // a lower limit triggers the next collection
			}
		}
	}
}

// swept waits until the runtime has probably swept the heap. Before that, garbage counts neither as live nor as gaps. It returns false if the
// context ends.
func swept(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(100 * time.Millisecond):
		return true
	}
}

// quietInterval is the time without a collection after which an enlarged heap shrinks again.
const quietInterval = 30 * time.Second

// notify sends after each collection until the context ends. It uses a finalizer, which runs after a collection.
func notify(ctx context.Context, collected chan<- struct{}) {
	type sentinel struct{ _ [16]byte } // 16 bytes, because smaller objects may share a memory block
	runtime.SetFinalizer(&sentinel{}, func(*sentinel) {
		if ctx.Err() != nil {
			return
		}
		select {
		case collected <- struct{}{}:
		default:
		}
		notify(ctx, collected)
	})
}

type keeper struct {
	ownPercent, ownLimit bool
	tuning               tuning
	usage                usage
}

func (k *keeper) adapt() {
	now := read()
	k.tuning = k.tuning.next(now.size, now.cost-k.usage.cost, now.at.Sub(k.usage.at))
	k.usage = now
	if k.ownPercent {
		debug.SetGCPercent(k.percent())
	}
	if k.ownLimit {
		debug.SetMemoryLimit(k.tuning.limit)
	}
}

// percent is -1 if the limit alone starts collections. Otherwise, the runtime would collect every two minutes, even if nothing has happened.
func (k *keeper) percent() int {
	if k.ownLimit {
		return -1
	}
	return max(k.tuning.percent, goPercent)
}

// size is the memory after the last collection, in bytes. other is what counts towards the limit although no heap object uses it, such as
// stacks and gaps between objects.
type size struct{ live, other uint64 }

// usage contains the runtime's measurements at one point in time.
type usage struct {
	at time.Time
	size
	// cost is the CPU time of all collections, except on otherwise idle CPUs.
	cost time.Duration
}

func read() usage {
	names := []string{
		"/gc/heap/live:bytes", "/memory/classes/total:bytes", "/memory/classes/heap/released:bytes", "/memory/classes/heap/free:bytes",
		"/memory/classes/heap/objects:bytes", "/cpu/classes/gc/total:cpu-seconds", "/cpu/classes/gc/mark/idle:cpu-seconds",
	}
	samples := make([]metrics.Sample, len(names))
	for i, name := range names {
		samples[i].Name = name
	}
	metrics.Read(samples)
	bytes := func(i int) uint64 { return samples[i].Value.Uint64() }
	seconds := samples[5].Value.Float64() - samples[6].Value.Float64()
	return usage{time.Now(), size{live: bytes(0), other: bytes(1) - bytes(2) - bytes(3) - bytes(4)}, time.Duration(seconds * float64(time.Second))}
}
