package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/agent/contest"
	"github.com/kube-ipvs/kube-ipvs/internal/agent/known"
	"github.com/kube-ipvs/kube-ipvs/internal/agent/quickcheck"
	"github.com/kube-ipvs/kube-ipvs/internal/agent/schedule"
	"github.com/kube-ipvs/kube-ipvs/internal/agent/slowstart"
	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// checks read summaries of the kernel's state outside the loop, to find changes by other programs.
type checks struct {
	quickcheck.Checks
	job[*kernel.Summary]
	cfg  *Config
	last time.Time
	// pending is the number of checks that still read virtual servers, although no other program has changed nftables since the previous check.
	pending int
	// again is true if the next check must read everything, and count if it must count the members of sets, because the last check failed or
	// the agent's own writes made it unusable.
	again, count bool
	// contests are the objects that another program keeps changing.
	contests contest.Contests
}

func (c *checks) watch() bool { return c.cfg.CheckInterval > 0 && c.failed == 0 && !c.hangs() }

func (c *checks) next(k *known.Kernel) time.Time {
	if c.cfg.CheckInterval == 0 || c.running() || k.State() == nil {
		return time.Time{}
	}
	return c.last.Add(c.cfg.CheckInterval)
}

func (c *checks) start(ctx context.Context, b *background, now time.Time, kern Kernel, k *known.Kernel, s *schedule.Schedule) {
	asked, writes := kernel.Sample{}, k.Writes()
	if c.pending > 0 || c.again {
		asked = c.Next(k.State())
	}
	asked.All, asked.Count = c.again, c.count
	c.last = now
	c.job.start(b, func() (*kernel.Summary, error) { return kern.Summarize(ctx, asked) }, func(summary *kernel.Summary, err error) {
		if c.again, c.count = err != nil, err != nil; err != nil {
			s.AuditSoon(c.cfg.AuditInterval) // without checks, only audits find changes
			return
		}
		if s.Reading(now) < tooLong && c.cfg.Checked != nil { // an audit that never ends counts as a failure
			c.cfg.Checked(now)
		}
		since := k.Writes()
		skip := [quickcheck.Parts]bool{
			quickcheck.Servers: writes.Servers != since.Servers,
			quickcheck.Sets:    writes.Sets != since.Sets || summary.Untouched,
			quickcheck.Rules:   writes.Rules != since.Rules || summary.Untouched,
			quickcheck.Sysctls: writes.Sysctls != since.Sysctls,
		}
		if c.pending = max(0, c.pending-1); !summary.ServersUntouched {
			c.pending = quickcheck.Rotation
		}
		c.again = !summary.Untouched && (skip[quickcheck.Servers] || skip[quickcheck.Sets] || skip[quickcheck.Rules])
		state := quickcheck.Known{State: k.State(), IPv4Servers: k.IPv4Servers()}
		c.count = skip[quickcheck.Sets] && summary.Sets != nil
		found := quickcheck.Compare(state, asked, summary, skip)
		skip[quickcheck.Sets] = skip[quickcheck.Sets] || summary.Sets == nil
		if c.Judge(now, found, skip) {
			s.AuditSoon(max(c.distance(), c.Distance()))
		}
	})
}

func (c *checks) distance() time.Duration { return c.contests.Distance(c.cfg.AuditInterval) }

// countDrift ignores differences that refused objects cause.
func (c *checks) countDrift(s *syncRun, ramps *slowstart.Ramps) {
	var repairs []kernel.Op
	repaired := false
	for _, r := range s.report.Results {
		repaired = repaired || r.Err == nil
		unexplained := s.unexplained || s.rulesUnexplained && r.Op.KindOf() == kernel.KindRules
		if unexplained && !r.Skipped && !r.Refused() && !errors.Is(r.Err, errOccupied) && diff.IsRepair(r.Op) && !ramps.IsStep(r.Op) {
			repairs = append(repairs, r.Op)
		}
	}
	s.report.Drifted = contest.Find(repairs, s.rulesRead, s.sysctlsRead)
	for _, f := range s.report.Drifted {
		s.report.Drift += f.Count
	}
	c.contests.Audit(s.now, c.cfg.AuditInterval, s.report.Drifted)
	c.AuditEnds(repaired)
}

func (c *checks) problems(node string) []model.Problem {
	t := trouble{
		"quick checks", fmt.Sprintf("changes by other programs are repaired only by full syncs, every %s", c.cfg.AuditInterval),
		"allow the failed operation, or turn quick checks off with --ipvs-check-period=0",
	}
	all := c.contests.Problems(node)
	if c.cfg.CheckInterval > 0 {
		all = append(all, c.job.problems(node, t)...)
	}
	return all
}
