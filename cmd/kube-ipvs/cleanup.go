package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/daemon"
)

// cleaning is how to clean up.
type cleaning struct {
	dryRun, keepServices bool
	output               string
}

func newCleanup(m *machine) *cobra.Command {
	var flags config.Flags
	var how cleaning
	cmd := &cobra.Command{
		Use:   "cleanup",
		Short: "Remove everything of kube-ipvs from this node",
		Long: `cleanup removes, in both families, the addresses and virtual servers that kube-ipvs made, its chains
and jumps, its ipsets, and kube-ipvs0. What others have made stays. Services stop working on this node;
connections through them end. Stop the agent first: it would put everything back, so cleanup refuses to
work while one runs. With --dry-run it says what it would remove, and whether it would refuse.

On the way back to kube-proxy in ipvs mode give --keep-services, after kube-proxy has started: it serves
with the virtual servers, addresses and kube-ipvs0 that it has found, which therefore stay, and only the
chains, jumps and ipsets that it does not know are removed. Without this flag cleanup refuses to work
beside a kube-proxy in ipvs mode that answers on 127.0.0.1:10249.

Sysctls stay as they are, because nobody can know what they were before.`,
		Example: "  kube-ipvs cleanup --dry-run\n  kube-ipvs cleanup\n  kube-ipvs cleanup --keep-services",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(cmd, how.output); err != nil {
				return err
			}
			loaded, err := loadFlags(cmd, &flags)
			if err != nil {
				return err
			}
			return cleanup(cmd, m, &loaded.Settings, how)
		},
	}
	flags.AddCompile(cmd.Flags())
	cmd.Flags().BoolVar(&how.dryRun, "dry-run", false, "print what would be removed, and remove nothing")
	cmd.Flags().BoolVar(&how.keepServices, "keep-services", false, "leave virtual servers, addresses and kube-ipvs0 to kube-proxy, which serves with them")
	addOutput(cmd, &how.output)
	return cmd
}

func cleanup(cmd *cobra.Command, m *machine, settings *config.Settings, how cleaning) error {
	ctx := cmd.Context()
	log, _, err := newLogger(cmd.ErrOrStderr(), "error", "text")
	if err != nil {
		return err
	}
	leave, refusal := claim(ctx, m, how)
	switch {
	case how.dryRun:
		leave()
	case refusal != nil:
		return refusal
	default:
		defer leave()
	}
	node, err := daemon.NewNode(ctx, m.Machine, settings, log) // also where Services could not be served
	if err != nil {
		return err
	}
	defer node.Close(log)
	c, err := agent.NewCleanup(ctx, node.Config(settings), node.Kernel)
	if err != nil {
		return err
	}
	if how.keepServices {
		c.KeepServices()
	}
	tell := newCleanupTeller(cmd, how)
	if refusal != nil {
		tell.refused(refusal)
	}
	err = remove(ctx, c, tell)
	return errors.Join(err, tell.end())
}

// claim keeps agents from starting until leave is called. It fails where somebody works on the node with whom cleanup would clash.
func claim(ctx context.Context, m *machine, how cleaning) (leave func(), err error) {
	if leave, err = m.lock(); err != nil {
		return func() {}, fmt.Errorf("%w; stop it first: it would put everything back", err)
	}
	if !how.keepServices && proxyServes(ctx, m.proxyMode) {
		leave()
		return func() {}, errProxyServes
	}
	return leave, nil
}

// proxyModeURL is where kube-proxy, and the agent, tell which mode they are in. While we hold the agent's place it is kube-proxy
// that answers.
const proxyModeURL = "http://127.0.0.1:10249/proxyMode"

var errProxyServes = errors.New("kube-proxy runs on this node in ipvs mode (" + proxyModeURL + " says so) and serves with the virtual servers that " +
	"cleanup would remove; give --keep-services to leave them to it, or stop it first")

func proxyServes(ctx context.Context, url string) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return false
	}
	defer response.Body.Close()
	const longest = 64
	mode, err := io.ReadAll(io.LimitReader(response.Body, longest))
	return err == nil && response.StatusCode == http.StatusOK && strings.TrimSpace(string(mode)) == "ipvs"
}

// remove removes what there is, or tells it only.
func remove(ctx context.Context, c *agent.Cleanup, tell *cleanupTeller) error {
	tell.found(c)
	if tell.DryRun {
		return nil
	}
	return c.Run(ctx, tell.removed)
}
