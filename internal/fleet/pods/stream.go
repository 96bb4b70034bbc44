package pods

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/remotecommand"
)

// Agents returns cfg.Nodes, or all nodes with an agent if cfg.Nodes is empty.
func Agents(ctx context.Context, cfg Config) ([]string, error) {
	if len(cfg.Nodes) > 0 {
		return slices.Compact(slices.Sorted(slices.Values(cfg.Nodes))), nil
	}
	client, err := kubernetes.NewForConfig(&cfg.Client)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	agents, err := find(ctx, client, cfg.Namespace)
	return slices.Sorted(maps.Keys(agents)), err
}

// Stream runs a command in the agent's pod on a node, with the given input and output, until the command or ctx ends. The
// command must end when its input ends.
func Stream(ctx context.Context, cfg Config, node string, line []string, in io.Reader, out io.Writer) error {
	client, err := kubernetes.NewForConfig(&cfg.Client)
	if err != nil {
		return err
	}
	within, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	agents, err := find(within, client, cfg.Namespace)
	if err != nil {
		return err
	}
	pod := agents[node]
	if pod == nil {
		return errors.New(noAgent)
	}
	if why := silence(pod); why != "" {
		return errors.New(why)
	}
	stderr := &limited{max: maxErrors, full: func() {}}
	err = cfg.run(ctx, client, pod, line, remotecommand.StreamOptions{Stdin: in, Stdout: out, Stderr: stderr})
	if text := strings.TrimSpace(string(stderr.bytes())); err != nil && text != "" {
		err = fmt.Errorf("%w: %s", err, text)
	}
	return err
}
