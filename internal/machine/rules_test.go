package machine

import (
	"fmt"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/iptables"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// TestAgentRules: the agent's rules are recognized in the output of iptables, even if the settings are not the
// defaults.
func TestAgentRules(t *testing.T) {
	values := map[string]string{"clusterCIDR": "10.244.0.0/16,fd00:10:244::/48", "iptables.masqueradeBit": "9"}
	v := &view.View{}
	for name, value := range values {
		v.Node.Settings = append(v.Node.Settings, view.Setting{Name: name, Value: value})
	}
	for i, ruleset := range compile.Base(compile.Config{Host: compile.Host{Families: inet.Families}, Settings: config.With(values).Compile()}).Rulesets {
		for _, c := range ruleset.Chains {
			for _, r := range c.Rules {
				printed := iptables.ParseRule(c.ChainID, fmt.Sprintf("-m comment --comment %q -j UNREADABLE", r.Comment()))
				l := kernel.RuleListing{Rules: map[kernel.ChainID][]kernel.SavedRule{c.ChainID: {printed}}}
				l.Recognize(agentRules(v)[i])
				if have := l.Rules[c.ChainID][0].Rule; have.String() != r.String() || have.Why != r.Why {
					t.Errorf("%s %s: got %s, want %s", ruleset.Family, c.ChainID, have, r)
				}
			}
		}
	}
}
