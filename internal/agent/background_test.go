package agent_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/kerneltest"
)

type hanging struct {
	*kerneltest.Fake
	what string
}

func (k *hanging) hangs(ctx context.Context, what string) error {
	if k.what != what {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}

func (k *hanging) Audit(ctx context.Context, asked kernel.Audit) (*kernel.Differences, error) {
	if err := k.hangs(ctx, "audit"); err != nil {
		return nil, err
	}
	return k.Fake.Audit(ctx, asked)
}

func (k *hanging) Summarize(ctx context.Context, sample kernel.Sample) (*kernel.Summary, error) {
	if err := k.hangs(ctx, "check"); err != nil {
		return nil, err
	}
	return k.Fake.Summarize(ctx, sample)
}

func (k *hanging) EndFlows(ctx context.Context, protocols []inet.Protocol, stale func(kernel.Flow) bool) (int, error) {
	if err := k.hangs(ctx, "walk"); err != nil {
		return 0, err
	}
	return k.Fake.EndFlows(ctx, protocols, stale)
}

func TestWorkThatNeverEnds(t *testing.T) {
	for what, told := range map[string]string{
		"":      "",
		"audit": "an audit has been running for",
		"check": "quick checks: the latest run began at ",
		"walk":  "connection tracking: the latest run began at ",
	} {
		t.Run(what, func(t *testing.T) {
			calmBubble(t, func(w *world) {
				w.config.CheckInterval = time.Second
				w.kernel = &hanging{w.fake, what}
				w.put(dns("10.244.0.1"))
				w.start()
				for i := range 90 {
					w.put(dns(fmt.Sprintf("10.244.1.%d", i+1)))
					w.sleep(10 * time.Second)
				}
				r := w.lastReport()
				said := fmt.Sprint(r.Err)
				for _, p := range r.NodeProblems {
					said += p.String()
				}
				if told != "" && !strings.Contains(said, told) || told == "" && strings.Contains(said, "not ended") {
					t.Errorf("after a quarter of an hour: %s", said)
				}
				if n := len(warnings(w, "has not ended")); n > 1 {
					t.Errorf("%d warnings about one run", n)
				}
			})
		})
	}
}
