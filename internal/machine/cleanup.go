package machine

import (
	"context"
	"errors"
	"fmt"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/daemon"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/status"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// Cleaning contains the options of Clean.
type Cleaning struct{ DryRun, KeepServices bool }

// Clean plans the removal of all kube-ipvs objects, and passes the plan to act. If the removal must not run, it also passes the reason. Then it calls
// rest, which removes what no plan contains, unless the removal must not run; also if nothing could be planned, for example because the machine has
// neither iptables nor nftables. Unless this is a dry run, no agent can start until both have returned.
func (m *Machine) Clean(
	ctx context.Context, settings *config.Settings, how Cleaning, log *zap.Logger, act func(*daemon.Node, *agent.Cleanup, error) error, rest func(planned bool) error,
) error {
	leave, refusal := m.TryLock()
	if refusal != nil {
		leave, refusal = func() {}, fmt.Errorf("%w; stop it first, because it would recreate everything", refusal)
	}
	switch {
	case how.DryRun:
		leave()
	case refusal != nil:
		return refusal
	default:
		defer leave()
	}
	planned := false
	refusal, err := m.cleanKernel(ctx, settings, how, refusal, log, func(node *daemon.Node, c *agent.Cleanup, refusal error) error {
		planned = true
		return act(node, c, refusal)
	})
	if refusal != nil && !how.DryRun {
		return err
	}
	return errors.Join(err, rest(planned)) // also if another object could not be removed
}

// cleanKernel returns why the removal must not run.
func (m *Machine) cleanKernel(
	ctx context.Context, settings *config.Settings, how Cleaning, refusal error, log *zap.Logger, act func(*daemon.Node, *agent.Cleanup, error) error,
) (refused, err error) {
	node, err := daemon.OpenAnyNode(ctx, m.Machine, settings, log) // also opens a machine that cannot serve Services
	if err != nil {
		return refusal, err
	}
	defer node.Close(log)
	c, err := agent.NewCleanup(ctx, node.Config(settings), node.Kernel)
	if err != nil {
		return refusal, err
	}
	if how.KeepServices {
		c.KeepServices()
	} else if refusal == nil {
		refusal = m.besideKubeProxy(ctx, c.KubeProxyRules)
	}
	return refusal, act(node, c, refusal)
}

// CleanLeftovers plans the removal of kube-proxy's leftovers, and passes the plan to act. If the removal must not run, it also passes the reason. It
// does not acquire the node lock, which the running agent holds.
func (m *Machine) CleanLeftovers(ctx context.Context, settings *config.Settings, socket string, log *zap.Logger, act func(*agent.Cleanup, error) error) error {
	v, silence, err := status.Ask(ctx, socket, agent.Query{})
	if err != nil {
		return err
	}
	if v != nil && v.Node.Mode != kernel.Userspace { // the owner records are in the agent's rule layer; in user space, there are none
		settings.DataPlane, settings.Rules = v.Node.Mode.DataPlane(), v.Node.Mode.Rules()
	}
	node, err := daemon.OpenAnyNode(ctx, m.Machine, settings, log)
	if err != nil {
		return err
	}
	defer node.Close(log)
	c, err := agent.NewLeftoverCleanup(ctx, node.Config(settings), node.Kernel)
	if err != nil {
		return err
	}
	return act(c, m.mayRemoveLeftovers(ctx, v, silence, c.KubeProxyRules))
}

// mayRemoveLeftovers returns an error if kube-proxy's objects may be in use. If no agent responds, v is nil and silence
// contains the reason. rules names a chain that kube-proxy has rewritten since the agent last wrote it; empty if there
// is none.
func (m *Machine) mayRemoveLeftovers(ctx context.Context, v *view.View, silence error, rules string) error {
	const alone = "the node may still depend on kube-proxy's objects; start the agent first"
	switch {
	case v == nil:
		return fmt.Errorf("no agent serves this node (%w): %s", silence, alone)
	case !v.Agent.Synced || v.Agent.LastFullSync == nil:
		return errors.New("the agent has not completed its first sync: " + alone)
	case v.Agent.Error != "":
		return fmt.Errorf("the agent's last sync failed (%s): %s", v.Agent.Error, alone)
	}
	if v.Node.Setting("serviceProxyName", "") != "" {
		return errors.New("the agent serves only the Services with its service proxy name (serviceProxyName), and kube-proxy serves the others")
	}
	if why := m.anyKubeProxy(ctx, v, rules); why != "" {
		return fmt.Errorf("kube-proxy might be running on this node (%s) and would recreate its objects; stop it first", why)
	}
	return nil
}

// besideKubeProxy returns an error if a kube-proxy might be using objects that cleanup would remove. rules names a chain that
// kube-proxy has rewritten since the agent last wrote it; empty if there is none.
func (m *Machine) besideKubeProxy(ctx context.Context, rules string) error {
	why := m.kubeProxy(ctx, rules)
	if why == "" {
		return nil
	}
	return fmt.Errorf("kube-proxy might be running on this node in ipvs mode (%s) and using the virtual servers that cleanup would remove; use --keep-services to "+
		"keep them. If kube-proxy was removed for good, run cleanup --kube-proxy-leftovers while the agent is running, and then repeat this cleanup", why)
}
