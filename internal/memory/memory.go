package memory

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"go.uber.org/zap"
)

// Run waits until the agent is ready, gives back what it no longer needs, and then adapts the heap's growth and limit after each
// collection until the context ends. It leaves alone what the environment sets: GOGC, GOMEMLIMIT.
func Run(ctx context.Context, ready <-chan struct{}, getenv func(string) string, log *zap.Logger) {
	select {
	case <-ctx.Done():
		return
	case <-ready:
	}
	debug.FreeOSMemory() // collects, too: not a cost that comes again
	log.Debug("gave memory back to the operating system")
	k := &keeper{ownPercent: getenv("GOGC") == "", ownLimit: getenv("GOMEMLIMIT") == "", usage: read()}
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
			k.adapt()
		case <-quiet.C:
			if k.tuning.percent > minPercent && time.Since(k.usage.at) >= quietInterval/2 {
				k.adapt() // a lower limit causes the next collection
			}
		}
	}
}

// quietInterval is how long nothing is collected until a heap that was let grow shrinks again.
const quietInterval = 30 * time.Second

// notify sends after each collection, until the context ends: a finalizer runs when one finds that its object is garbage.
func notify(ctx context.Context, collected chan<- struct{}) {
	type sentinel struct{ _ [16]byte } // not tiny: tiny objects share their memory with others
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

// keeper applies the tuning.
type keeper struct {
	ownPercent, ownLimit bool
	tuning               tuning
	usage                usage
}

func (k *keeper) adapt() {
	now := read()
	k.tuning = k.tuning.next(now.live, now.cost-k.usage.cost, now.at.Sub(k.usage.at))
	k.usage = now
	if k.ownPercent {
		debug.SetGCPercent(k.tuning.percent)
	}
	if k.ownLimit {
		debug.SetMemoryLimit(k.tuning.limit)
	}
}

// usage is what the runtime has measured until a time.
type usage struct {
	at time.Time
	// live is what the last collection left, in bytes.
	live uint64
	// cost is the CPU time of all collections, without what used idle CPUs.
	cost time.Duration
}

func read() usage {
	samples := []metrics.Sample{
		{Name: "/gc/heap/live:bytes"}, {Name: "/cpu/classes/gc/total:cpu-seconds"}, {Name: "/cpu/classes/gc/mark/idle:cpu-seconds"},
	}
	metrics.Read(samples)
	seconds := samples[1].Value.Float64() - samples[2].Value.Float64()
	return usage{time.Now(), samples[0].Value.Uint64(), time.Duration(seconds * float64(time.Second))}
}
