package ipvs

import (
	"context"
	"fmt"
	"time"

	lib "github.com/moby/ipvs"
)

// Timeouts are how long IPVS remembers an idle connection, in whole seconds.
type Timeouts struct {
	TCP    time.Duration
	TCPFin time.Duration
	UDP    time.Duration
}

// Timeouts reads them.
func (b *Backend) Timeouts(ctx context.Context) (Timeouts, error) {
	var config *lib.Config
	err := b.withLibrary(ctx, func(h *lib.Handle) (err error) {
		config, err = h.GetConfig()
		return err
	})
	if err != nil {
		return Timeouts{}, fmt.Errorf("read IPVS timeouts: %w", err)
	}
	return Timeouts{TCP: config.TimeoutTCP, TCPFin: config.TimeoutTCPFin, UDP: config.TimeoutUDP}, nil
}

// SetTimeouts sets them; those that are zero stay.
func (b *Backend) SetTimeouts(ctx context.Context, t Timeouts) error {
	err := b.withLibrary(ctx, func(h *lib.Handle) error {
		return h.SetConfig(&lib.Config{TimeoutTCP: t.TCP, TimeoutTCPFin: t.TCPFin, TimeoutUDP: t.UDP})
	})
	if err != nil {
		return fmt.Errorf("set IPVS timeouts: %w", err)
	}
	return nil
}

// withLibrary lends a handle of moby/ipvs. It resolves the family first: in a kernel without IPVS the library would never notice,
// report success for every write and index an empty slice on reading.
//
// The library's first use in a process runs modprobe, and a warning goes to logrus if that fails; the number of the family that it
// finds then is for life, so after the module was loaded again the timeouts fail until the process restarts.
func (b *Backend) withLibrary(ctx context.Context, use func(*lib.Handle) error) error {
	if err := b.resolve(ctx); err != nil {
		return err
	}
	h, err := lib.New("")
	if err != nil {
		return err
	}
	defer h.Close()
	return use(h)
}
