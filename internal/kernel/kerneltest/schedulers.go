package kerneltest

import (
	"context"
	"slices"
)

// Schedulers implements Kernel.
func (f *Fake) Schedulers(ctx context.Context, names []string) map[string]bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	has := map[string]bool{}
	if ctx.Err() != nil {
		return has
	}
	for _, name := range names {
		has[name] = f.hasScheduler(name)
	}
	return has
}

func (f *Fake) hasScheduler(name string) bool {
	return slices.Contains(schedulers, name) && !f.lacking[name]
}

// LacksScheduler removes the modules of these schedulers.
func (f *Fake) LacksScheduler(names ...string) { f.lack(true, names) }

// GetsScheduler restores the modules of these schedulers.
func (f *Fake) GetsScheduler(names ...string) { f.lack(false, names) }

func (f *Fake) lack(lacks bool, names []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, name := range names {
		f.lacking[name] = lacks
	}
}
