//go:build linux

package daemon

import (
	"context"
	"time"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/startuptaint"
)

// taintRetry is the delay before the first retry to remove the startup taint. maxTaintRetry is the longest delay.
const taintRetry, maxTaintRetry = time.Second, time.Minute

// taintCheck is how often the agent looks whether the taint is back: a kubelet whose Node object was deleted creates it again, with the taint.
const taintCheck = 10 * time.Minute

// taintLimit is the timeout of one attempt.
const taintLimit = 10 * time.Second

// startupTaint removes the taint from this node after the first complete sync.
type startupTaint struct {
	// remove is nil if the taint stays.
	remove   func(context.Context) (bool, error)
	problems nodeProblems
	log      *zap.Logger
}

type nodeProblems interface {
	SetProblem(model.Problem)
	ClearProblem(field string)
}

func openStartupTaint(settings *config.Settings, node string, source *Source, problems nodeProblems, log *zap.Logger) (*startupTaint, error) {
	if !settings.RemoveStartupTaint {
		return &startupTaint{}, nil
	}
	object, err := startuptaint.Of(node, source.api)
	if err != nil {
		return nil, err
	}
	return &startupTaint{remove: object.Remove, problems: problems, log: log}, nil
}

// run waits for the first complete sync, and then removes the taint whenever it is there.
func (s *startupTaint) run(ctx context.Context, ready <-chan struct{}) {
	if s.remove == nil {
		return
	}
	select {
	case <-ready:
	case <-ctx.Done():
		return
	}
	for retry := taintRetry; ctx.Err() == nil; {
		wait := taintCheck
		if s.try(ctx) {
			retry = taintRetry
		} else {
			wait, retry = retry, min(2*retry, maxTaintRetry)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
		}
	}
}

func (s *startupTaint) try(ctx context.Context) (done bool) {
	ctx, cancel := context.WithTimeout(ctx, taintLimit)
	defer cancel()
	removed, err := s.remove(ctx)
	const field = "startup taint"
	if err != nil {
		s.problems.SetProblem(model.Problem{
			Field: field, Value: startuptaint.Key, Reason: err.Error(),
			Remedy: "allow the agent to patch nodes, as the chart's value startupTaint.enabled does; until then, pods that do not tolerate the taint stay off this node",
		})
		return false
	}
	s.problems.ClearProblem(field)
	if removed {
		s.log.Info("startup taint removed", zap.String("taint", startuptaint.Key))
	}
	return true
}
