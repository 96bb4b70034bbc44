package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/daemon"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// detour are flags of kube-proxy's with which run does something else than running. Here most of them are commands; as flags they
// are for manifests that exist.
type detour struct {
	cleanup, initOnly      bool
	writeConfigTo, version string
}

func (d *detour) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.BoolVar(&d.initOnly, "init-only", false, "set the sysctls, for which full root privileges are needed, and exit")
	f.BoolVar(&d.cleanup, "cleanup", false, "as kube-proxy's: do what the command cleanup does, and exit")
	f.StringVar(&d.writeConfigTo, "write-config-to", "", "as kube-proxy's: write the configuration that file and flags give to this file, and exit")
	f.StringVar(&d.version, "version", "false", "as kube-proxy's: print the version, and exit")
	f.Lookup("version").NoOptDefVal = "true"
}

func (d *detour) check() error {
	if valid := []string{"true", "false", "raw"}; !slices.Contains(valid, d.version) {
		return fmt.Errorf("--version %q: want one of %s", d.version, strings.Join(valid, ", "))
	}
	return nil
}

// instead does what was asked for instead of running, in kube-proxy's order; the second result is false if nothing was.
func (d *detour) instead(cmd *cobra.Command, m *machine, loaded *config.Loaded) (func() error, bool) {
	switch {
	case d.version != "false":
		return func() error { return printVersion(cmd, asText) }, true
	case d.writeConfigTo != "":
		return func() error { return writeConfig(cmd, loaded, d.writeConfigTo) }, true
	case d.cleanup:
		return func() error { return cleanup(cmd, m, &loaded.Settings, cleaning{output: asText}) }, true
	case d.initOnly:
		return func() error { return initialize(cmd, m, &loaded.Settings) }, true
	}
	return nil, false
}

func writeConfig(cmd *cobra.Command, loaded *config.Loaded, file string) error {
	text, err := loaded.YAML()
	if err != nil {
		return err
	}
	if err := os.WriteFile(file, text, 0o644); err != nil {
		return fmt.Errorf("--write-config-to: %w", err)
	}
	_, err = fmt.Fprintln(cmd.OutOrStdout(), "wrote the configuration to", file)
	return err
}

// initialize sets what the agent could not set with CAP_NET_ADMIN and CAP_NET_RAW alone: it finds it as it is to be then.
func initialize(cmd *cobra.Command, m *machine, settings *config.Settings) error {
	ctx := cmd.Context()
	log, _, err := newLogger(cmd.ErrOrStderr(), settings.LogLevel, settings.LogFormat)
	if err != nil {
		return err
	}
	node, err := daemon.OpenNode(ctx, m.Machine, settings, log)
	if err != nil {
		return err
	}
	defer node.Close(log)
	return setSysctls(ctx, node.Kernel, compile.Base(node.Config(settings)).Sysctls, log)
}

func setSysctls(ctx context.Context, k daemon.Kernel, sysctls []kernel.SysctlSetting, log *zap.Logger) error {
	have, err := k.Read(ctx)
	if err != nil {
		return err
	}
	var ops []kernel.Op
	for _, s := range sysctls {
		if have.Sysctls[s.Name] != s.Value {
			ops = append(ops, kernel.Op{Verb: kernel.Ensure, Object: s})
		}
	}
	var failed []error
	for i, err := range k.Apply(ctx, ops) {
		switch {
		case err == nil:
			log.Info(ops[i].String())
		case ops[i].Object.(kernel.SysctlSetting).Optional:
			log.Warn("failed", zap.Stringer("op", ops[i]), zap.Error(err))
		default:
			failed = append(failed, err)
		}
	}
	log.Info("this node is prepared", zap.Int("changes", len(ops)-len(failed)))
	return errors.Join(failed...)
}
