package live

import (
	"context"
	"errors"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/ipvs"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/netdev"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/sockopt"
)

// summarizer reads summaries concurrently with all other work, in the network namespace in which it was opened.
type summarizer struct {
	cfg     Config
	thread  thread
	ipvs    *ipvs.Backend
	sysctls *netdev.Sysctls
	tables  summaries
	ipv4    *sockopt.Socket
}

func newSummarizer(cfg Config, beside *Kernel) (*summarizer, error) {
	s := &summarizer{cfg: cfg, sysctls: beside.netdev.FollowSysctls()}
	var errs [4]error
	s.ipvs, errs[0] = ipvs.New()
	s.tables, errs[1] = openSummaries(cfg, beside.iptables)
	s.ipv4, errs[2] = sockopt.Open(inet.IPv4)
	s.thread, errs[3] = newThread()
	return s, errors.Join(errs[:]...)
}

func (s *summarizer) close() error {
	errs := []error{s.sysctls.Close()}
	if s.thread != nil {
		close(s.thread)
	}
	if s.ipvs != nil {
		errs = append(errs, s.ipvs.Close())
	}
	if s.tables != nil {
		errs = append(errs, s.tables.Close())
	}
	if s.ipv4 != nil {
		errs = append(errs, s.ipv4.Close())
	}
	return errors.Join(errs...)
}

func (s *summarizer) stats() nlbatch.Stats {
	return add(s.ipvs.Stats(), s.tables.Stats())
}

// Summarize reads a summary that includes these virtual servers. Like Audit, it may be called while other methods run.
func (k *Kernel) Summarize(ctx context.Context, keys []kernel.ServerKey) (read *kernel.Summary, err error) {
	k.summarizer.thread.do(func() { read, err = k.summarizer.read(ctx, keys) })
	return read, err
}

func (s *summarizer) read(ctx context.Context, keys []kernel.ServerKey) (*kernel.Summary, error) {
	read := &kernel.Summary{}
	var errs [4]error
	read.IPv4Servers, errs[0] = ipvs.CountIPv4(s.ipv4)
	read.Servers, errs[1] = s.ipvs.Lookup(ctx, keys)
	read.Sets, read.Rules, errs[2] = s.tables.Summarize(ctx)
	read.Sysctls, errs[3] = s.sysctls.Read(ctx, s.cfg.Sysctls)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	return read, nil
}
