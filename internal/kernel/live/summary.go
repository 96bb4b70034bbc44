package live

import (
	"context"
	"errors"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/netdev"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

type summarizer struct {
	cfg     Config
	thread  thread
	servers serverSummaries
	sysctls *netdev.Sysctls
	tables  summaries
	seen    *seen
}

func newSummarizer(cfg Config, beside *Kernel) (*summarizer, error) {
	s := &summarizer{cfg: cfg, sysctls: beside.netdev.FollowSysctls(), seen: &beside.seen}
	var errs [3]error
	s.servers, errs[0] = openServerSummaries(cfg)
	s.tables, errs[1] = openSummaries(cfg, beside.iptables, beside.writes)
	s.thread, errs[2] = newBackgroundThread()
	return s, errors.Join(errs[:]...)
}

func (s *summarizer) close() error {
	errs := []error{s.sysctls.Close()}
	if s.thread != nil {
		close(s.thread)
	}
	if s.servers != nil {
		errs = append(errs, s.servers.Close())
	}
	if s.tables != nil {
		errs = append(errs, s.tables.Close())
	}
	return errors.Join(errs...)
}

func (s *summarizer) stats() nlbatch.Stats {
	return add(s.servers.Stats(), s.tables.Stats())
}

// Summarize reads a summary. Like Audit, it may be called while other methods run.
func (k *Kernel) Summarize(ctx context.Context, sample kernel.Sample) (read *kernel.Summary, err error) {
	k.summarizer.thread.do(func() { read, err = k.summarizer.read(ctx, sample) })
	return read, err
}

func (s *summarizer) read(ctx context.Context, sample kernel.Sample) (*kernel.Summary, error) {
	read := &kernel.Summary{IPv4Servers: kernel.Uncounted}
	var errs [5]error
	untouched, err := s.tables.Untouched(ctx)
	errs[0], read.Untouched = err, untouched && !sample.All
	if read.ServersUntouched = read.Untouched && s.cfg.Mode.NFTablesBalances(); !read.ServersUntouched {
		read.IPv4Servers, errs[1] = s.servers.CountIPv4(ctx)
	}
	read.Servers, errs[2] = s.servers.Lookup(ctx, sample.Servers)
	read.Sysctls, errs[3] = s.sysctls.Read(ctx, s.cfg.Sysctls)
	if !read.Untouched && errors.Join(errs[:]...) == nil { // last, because then the summary is complete
		errs[4] = s.tables.Summarize(ctx, sample, read)
	}
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	s.seen.note(s.tables.Generation())
	return read, nil
}
