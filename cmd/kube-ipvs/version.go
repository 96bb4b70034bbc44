package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set when a release is built.
var version = "dev"

type versionInfo struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// versionDocument is what version prints for programs.
type versionDocument struct {
	header
	versionInfo
}

func buildVersion() versionInfo {
	info := versionInfo{Version: version, Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if build, ok := debug.ReadBuildInfo(); ok {
		for _, s := range build.Settings {
			if s.Key == "vcs.revision" {
				info.Commit = s.Value
			}
		}
	}
	return info
}

func newVersion() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  kube-ipvs version\n  kube-ipvs version -o json",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(cmd, output); err != nil {
				return err
			}
			return printVersion(cmd, output)
		},
	}
	addOutput(cmd, &output)
	return cmd
}

func printVersion(cmd *cobra.Command, output string) error {
	info := buildVersion()
	if output != asText {
		return encode(cmd.OutOrStdout(), output, versionDocument{headerOf("Version"), info})
	}
	_, err := fmt.Fprintf(cmd.OutOrStdout(), "kube-ipvs %s (%s, %s)\n", info.Version, info.Go, info.Platform)
	return err
}
