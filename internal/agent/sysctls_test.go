package agent_test

import (
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/kerneltest"
)

// A sysctl that the agent may not set is a problem of the node until another program sets it.
func TestUnsetSysctlIsAProblem(t *testing.T) {
	calmBubble(t, func(w *world) {
		limit := kernel.SysctlSetting{Name: "net/netfilter/nf_conntrack_max", Value: "1000000", Optional: true}
		w.config.Compile.Sysctls = append(w.config.Compile.Sysctls, limit)
		w.fake.Fixes(limit.Name, true)
		w.put(web("10.244.0.1"))
		w.start()
		w.sleep(3 * auditInterval)
		problems := w.view(agent.Query{}).NodeProblems
		if len(problems) != 1 {
			w.Fatalf("the problems of the node are %+v, want one", problems)
		}
		for _, part := range []string{`net.netfilter.nf_conntrack_max "1000000"`, "262144", "permission denied", "conntrack.maxPerCore"} {
			if !strings.Contains(problems[0].Text, part) {
				w.Errorf("the problem %q does not contain %q", problems[0].Text, part)
			}
		}
		for _, r := range w.takeReports() {
			if r.Err != nil {
				w.Errorf("a sync failed: %v", r.Err)
			}
		}
		w.fake.Fixes(limit.Name, false)
		w.damage(func(f *kerneltest.Fake) error { return f.SetSysctl(limit) })
		w.sleep(auditInterval)
		if problems := w.view(agent.Query{}).NodeProblems; len(problems) > 0 {
			w.Errorf("the node still has problems: %+v", problems)
		}
	})
}
