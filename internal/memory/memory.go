package memory

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"go.uber.org/zap"
)

// Run adapts the memory limit after each collection, until the context ends. When the agent is ready, Run returns unused
// memory to the operating system. It does not override GOGC and GOMEMLIMIT from the environment.
func Run(ctx context.Context, ready <-chan struct{}, getenv func(string) string, log *zap.Logger) {
	k := &keeper{ownPercent: getenv("GOGC") == "", ownLimit: getenv("GOMEMLIMIT") == "", starting: true}
	k.adapt()
	collected := make(chan struct{}, 1)
	notify(ctx, collected)
	quiet := time.NewTicker(quietInterval)
	defer quiet.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ready:
			ready = nil
			debug.FreeOSMemory() // also runs a collection
			log.Debug("returned memory to the operating system")
			k.starting, k.tuning, k.usage = false, tuning{}, read()
			k.adapt()
		case <-collected:
			k.adapt()
		case <-quiet.C:
			if !k.starting && k.tuning.percent > minPercent && time.Since(k.usage.at) >= quietInterval/2 {
				k.adapt() // a lower limit triggers the next collection
			}
		}
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
	// starting is true until the agent is ready.
	starting bool
	tuning   tuning
	usage    usage
}

func (k *keeper) adapt() {
	now := read()
	if k.starting {
		k.tuning = starting(now.live, now.fixed)
	} else {
		k.tuning = k.tuning.next(now.live, now.fixed, now.cost-k.usage.cost, now.at.Sub(k.usage.at))
	}
	k.usage = now
	switch {
	case k.ownLimit && k.ownPercent:
		debug.SetMemoryLimit(k.tuning.limit)
		// The limit alone triggers collections. Otherwise, the runtime would also collect every two minutes.
		debug.SetGCPercent(-1)
	case k.ownLimit:
		debug.SetMemoryLimit(k.tuning.limit)
	case k.ownPercent:
		debug.SetGCPercent(k.tuning.percent)
	}
}

// usage contains the runtime's measurements at one point in time.
type usage struct {
	at time.Time
	// live is the size of the heap after the last collection, in bytes.
	live uint64
	// fixed is the size of the runtime's memory outside the heap: stacks and its own tables.
	fixed uint64
	// cost is the CPU time of all collections, except on otherwise idle CPUs.
	cost time.Duration
}

func read() usage {
	samples := []metrics.Sample{
		{Name: "/gc/heap/live:bytes"}, {Name: "/cpu/classes/gc/total:cpu-seconds"}, {Name: "/cpu/classes/gc/mark/idle:cpu-seconds"},
		{Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"}, {Name: "/memory/classes/heap/free:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/unused:bytes"},
	}
	metrics.Read(samples)
	seconds := samples[1].Value.Float64() - samples[2].Value.Float64()
	fixed := samples[3].Value.Uint64()
	for _, heap := range samples[4:] {
		fixed -= heap.Value.Uint64()
	}
	return usage{time.Now(), samples[0].Value.Uint64(), fixed, time.Duration(seconds * float64(time.Second))}
}
