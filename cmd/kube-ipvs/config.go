package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

func newConfig() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "config",
		Short: "Show, check and convert the configuration",
		Long: `A configuration consists of defaults, a file (--config) and flags. Flags override the file, and the
file overrides the defaults. The file is in kube-ipvs's own format, or contains a KubeProxyConfiguration:
alone, among other documents, or in a ConfigMap.`,
		Example: `  kube-ipvs config view --config kube-ipvs.yaml --ipvs-scheduler wlc
  kube-ipvs config validate --config kube-ipvs.yaml
  kube-ipvs config convert kube-proxy.yaml > kube-ipvs.yaml`,
		Args: noSuchCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newConfigView(), newConfigValidate(), newConfigConvert())
	return cmd
}

func newConfigView() *cobra.Command {
	var flags config.Flags
	var output string
	cmd := &cobra.Command{
		Use:   "view",
		Short: "Show every setting and its origin",
		Long: `view accepts the same file and flags as run, and prints the resulting settings. The YAML output shows
the origin of each setting (default, a line of the file, or a flag) and is itself a valid configuration
file. view prints warnings to stderr.`,
		Example: "  kube-ipvs config view\n  kube-ipvs config view --config kube-proxy.yaml -o json",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return printConfig(cmd, &flags, output, (*config.Loaded).YAML, (*config.Loaded).JSON)
		},
	}
	flags.AddRun(cmd.Flags())
	addForms(cmd, &output, configForms)
	return cmd
}

func newConfigConvert() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "convert FILE",
		Short: "Convert a KubeProxyConfiguration to a kube-ipvs configuration",
		Long: `convert prints the settings of FILE that differ from the defaults, in kube-ipvs's own format. FILE is a
KubeProxyConfiguration, or a ConfigMap that contains one. On stderr, convert lists the settings that
have no effect in kube-ipvs.`,
		Example: `  kubectl -n kube-system get configmap kube-proxy -o yaml > kube-proxy.yaml
  kube-ipvs config convert kube-proxy.yaml > kube-ipvs.yaml`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			flags := config.Flags{File: args[0]}
			return printConfig(cmd, &flags, output, (*config.Loaded).ChangedYAML, (*config.Loaded).ChangedJSON)
		},
	}
	addForms(cmd, &output, configForms)
	return cmd
}

var configForms = []string{asYAML, asJSON}

func printConfig(cmd *cobra.Command, flags *config.Flags, output string, yaml, json func(*config.Loaded) ([]byte, error)) error {
	loaded, err := flags.Load()
	if err != nil {
		return err
	}
	printWarnings(cmd, loaded)
	text, err := map[string]func(*config.Loaded) ([]byte, error){asYAML: yaml, asJSON: json}[output](loaded)
	if err != nil {
		return err
	}
	_, err = cmd.OutOrStdout().Write(text)
	return err
}

// verdict is the JSON and YAML output of validate.
type verdict struct {
	view.Header
	Valid    bool     `json:"valid"`
	Errors   []string `json:"errors"`
	Warnings []string `json:"warnings"`
}

func newConfigValidate() *cobra.Command {
	var flags config.Flags
	var output string
	cmd := &cobra.Command{
		Use:   "validate",
		Short: "Check a configuration and print all errors",
		Long: `validate accepts the same file and flags as run, and prints all errors and warnings. It does not inspect
this machine. The exit status is 1 if there is an error.`,
		Example: "  kube-ipvs config validate --config kube-ipvs.yaml\n  kube-ipvs config validate --config kube-proxy.yaml -o json",
		Args:    noArguments,
		RunE:    func(cmd *cobra.Command, _ []string) error { return validate(cmd, &flags, output) },
	}
	flags.AddRun(cmd.Flags())
	addOutput(cmd, &output)
	return cmd
}

func validate(cmd *cobra.Command, flags *config.Flags, output string) error {
	loaded, err := flags.Load()
	if output == asText {
		if err == nil {
			printWarnings(cmd, loaded)
			_, err = fmt.Fprintln(cmd.OutOrStdout(), "the configuration is valid")
		}
		return err
	}
	v := verdict{Header: view.HeaderOf("ConfigurationVerdict"), Valid: err == nil, Errors: []string{}, Warnings: []string{}}
	if err == nil {
		v.Warnings = append(v.Warnings, loaded.Warnings...)
	} else {
		v.Errors = strings.Split(err.Error(), "\n")
	}
	if printErr := inspect.Write(cmd.OutOrStdout(), output, v, nil); printErr != nil || err == nil {
		return printErr
	}
	return errors.New("the configuration is not valid")
}

func printWarnings(cmd *cobra.Command, loaded *config.Loaded) {
	for _, warning := range loaded.Warnings {
		fmt.Fprintln(cmd.ErrOrStderr(), "warning:", warning)
	}
}
