//go:build linux

package daemon

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
	"github.com/kube-ipvs/kube-ipvs/internal/watch"
	"github.com/kube-ipvs/kube-ipvs/internal/watch/manifests"
)

const planTimeout = 30 * time.Second

// loadDir reads a directory of manifests. Its errors include a remedy.
func loadDir(settings *config.Settings, dir string) (model.Changes, error) {
	changes, err := manifests.Load(dir, watch.Proxy(settings.ServiceProxyName))
	if err == nil {
		return changes, nil
	}
	switch info, unseen := os.Stat(dir); {
	case unseen != nil:
		err = fmt.Errorf("%w; use a directory of Service, EndpointSlice and Node manifests", err)
	case !info.IsDir():
		err = fmt.Errorf("%w; use the directory that contains it (%s): every .yaml, .yml and .json file in it is read", err, filepath.Dir(dir))
	}
	return changes, err
}

// PlanDir returns the wanted state for a directory of manifests, and the Problems of its objects. The result does not depend on this machine.
func PlanDir(settings *config.Settings, dir string) (*want.State, []model.Problem, error) {
	name, err := settings.Hostname()
	if err != nil {
		return nil, nil, err
	}
	changes, err := loadDir(settings, dir)
	if err != nil {
		return nil, nil, fmt.Errorf("--filename: %w", err)
	}
	var problems []model.Problem
	for _, object := range slices.SortedFunc(maps.Keys(changes.Problems), model.ObjectRef.Compare) {
		problems = append(problems, changes.Problems[object]...)
	}
	cluster := compile.NewCluster(compile.Config{Host: compile.Host{NodeName: name, Families: inet.Families}, Settings: settings.Compile()})
	facts := compile.Facts{Nodes: changes.Nodes, Services: changes.Services, Listeners: kernel.Listeners{}}
	if node := changes.Nodes[name]; node != nil {
		facts.Addresses = node.Addresses
	}
	for _, id := range cluster.Apply(facts, want.NewTouched()) {
		problems = append(problems, cluster.Problems(id)...)
	}
	return cluster.Want(), problems, nil
}

// OpenIdle opens this machine for an idle agent. It fails if it cannot read the manifests. A running agent would wait until the directory is
// mounted.
func OpenIdle(ctx context.Context, m Machine, settings *config.Settings, log *zap.Logger) (*Node, error) {
	if settings.Manifests != "" {
		if _, err := loadDir(settings, settings.Manifests); err != nil {
			return nil, err
		}
	}
	return openNode(ctx, m, settings, log)
}

// Idle returns an agent that has listed all objects but does not run. It can predict what a running agent would do.
func (n *Node) Idle(ctx context.Context, settings *config.Settings, version string, log *zap.Logger) (*agent.Agent, error) {
	from, err := openSource(settings, n.host.NodeName, version, log)
	if err == nil {
		err = from.awaitSync(ctx, planTimeout)
	}
	if err != nil {
		return nil, err
	}
	return agent.New(agent.Config{Compile: n.Config(settings)}, from.Source, n.Kernel, log), nil
}

// SetSysctls sets the sysctls for an agent that has only CAP_NET_ADMIN and CAP_NET_RAW, which cannot set them itself.
func SetSysctls(ctx context.Context, m Machine, settings *config.Settings, log *zap.Logger) error {
	node, err := openNode(ctx, m, settings, log)
	if err != nil {
		return err
	}
	defer node.Close(log)
	return agent.SetSysctls(ctx, node.Config(settings), node.Kernel, log)
}

// awaitSync runs the source until it has listed all objects. The error names the missing kinds of objects and the
// reasons.
func (s *Source) awaitSync(ctx context.Context, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- s.Source.Run(ctx) }()
	for !s.Source.Synced() {
		select {
		case <-s.Source.Changed():
		case err := <-ended:
			return errors.Join(err, s.notSynced(timeout))
		}
	}
	cancel()
	return <-ended
}

func (s *Source) notSynced(timeout time.Duration) error {
	if s.lastErrors == nil {
		return fmt.Errorf("could not read the manifests within %s", timeout)
	}
	reasons := []string{fmt.Sprintf("could not list all objects of the API server %s within %s", s.api.Host, timeout)}
	errs := s.lastErrors()
	for _, kind := range slices.Sorted(maps.Keys(errs)) {
		reasons = append(reasons, fmt.Sprintf("%s: %v", kind, errs[kind]))
	}
	return errors.New(strings.Join(reasons, "; "))
}
