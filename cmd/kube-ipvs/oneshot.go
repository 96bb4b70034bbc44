package main

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kube-ipvs/kube-ipvs/internal/config"
)

// oneShot contains the kube-proxy flags that make run do one task and exit, so kube-proxy's manifests keep working. Most tasks are
// also commands.
type oneShot struct {
	cleanup, initOnly      bool
	writeConfigTo, version string
}

func (o *oneShot) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.BoolVar(&o.initOnly, "init-only", false, "set the sysctls, which requires full root privileges, and exit")
	f.BoolVar(&o.cleanup, "cleanup", false, "clean up like the cleanup command, and exit (as in kube-proxy)")
	f.StringVar(&o.writeConfigTo, "write-config-to", "", "write the configuration, merged from file and flags, to this file and exit (as in kube-proxy)")
	f.StringVar(&o.version, "version", "false", "print the version, and exit (as in kube-proxy)")
	f.Lookup("version").NoOptDefVal = "true"
}

func (o *oneShot) check() error {
	if valid := []string{"true", "false", "raw"}; !slices.Contains(valid, o.version) {
		return fmt.Errorf("--version %q: use one of %s", o.version, strings.Join(valid, ", "))
	}
	return nil
}

// action returns the action that the flags select, in kube-proxy's order of precedence. It returns false if no flag is set.
func (o *oneShot) action(cmd *cobra.Command, m *host, loaded *config.Loaded) (func() error, bool) {
	switch {
	case o.version != "false":
		return func() error { return printVersion(cmd, asText) }, true
	case o.writeConfigTo != "":
		return func() error { return writeConfig(cmd, loaded, o.writeConfigTo) }, true
	case o.cleanup:
		return func() error { return cleanUp(cmd, m, &loaded.Settings) }, true
	case o.initOnly:
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
