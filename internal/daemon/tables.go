//go:build linux

package daemon

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel/ipvs"
	"github.com/kube-ipvs/kube-ipvs/internal/telemetry"
)

type tables struct {
	nodes *nodes

	mu   sync.Mutex
	ipvs telemetry.Tables
	next time.Time
}

// Counting IPVS connections is slow with many destinations, so it may take at most 1/tableShare of the time.
const tableShare = 500

func (t *tables) read() telemetry.Tables {
	t.mu.Lock()
	defer t.mu.Unlock()
	if started := time.Now(); t.nodes.current().Mode.IPVSBalances() && !started.Before(t.next) {
		t.ipvs = telemetry.Tables{}
		if o, err := ipvs.ReadOccupancy(); err == nil { // without the module, the table does not exist
			t.ipvs.Connections, t.ipvs.Buckets = &o.Connections, &o.Buckets
		}
		t.next = started.Add(tableShare * time.Since(started))
	}
	all := t.ipvs
	all.Tracked = readNumber("/proc/sys/net/netfilter/nf_conntrack_count")
	all.TrackedLimit = readNumber("/proc/sys/net/netfilter/nf_conntrack_max")
	return all
}

// readNumber returns nil if the file does not exist, for example because the nf_conntrack module is not loaded.
func readNumber(file string) *uint64 {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err != nil {
		return nil
	}
	return &n
}
