package wire

import (
	"sync"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// Writes are the generations of nftables that the agent itself has made. Each committed transaction is one generation. The methods may be
// called concurrently.
type Writes struct {
	mu  sync.Mutex
	own map[uint32]struct{}
}

// most limits the memory if no caller asks which generations are the agent's own.
const most = 1 << 12

// NewWrites returns Writes without a generation.
func NewWrites() *Writes { return &Writes{own: map[uint32]struct{}{}} }

func (w *Writes) add(generation uint32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.own) >= most {
		clear(w.own)
	}
	w.own[generation] = struct{}{}
}

// Only reports whether the agent made all generations after one until another. It forgets them. A generation whose answer was lost counts as
// another program's.
func (w *Writes) Only(after, until uint32) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	only := until-after <= most
	for g := after + 1; only && g != until+1; g++ {
		_, own := w.own[g]
		only = own || g == 0 // the kernel skips 0
	}
	for g := range w.own {
		if int32(g-until) <= 0 {
			delete(w.own, g)
		}
	}
	return only
}

// AttributeTo notes the generations that this connection makes.
func (c *Conn) AttributeTo(w *Writes) {
	c.attributed = true
	c.conn.OnEcho(func(m nlbatch.Message) {
		if m.Type != unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWGEN {
			return
		}
		if a, err := parse(m.Payload); err == nil {
			w.add(a.Number(unix.NFTA_GEN_ID))
		}
	})
}
