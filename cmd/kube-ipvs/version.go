package main

import (
	"encoding/json"
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
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			asJSON, err := wantsJSON(cmd, output)
			if err != nil {
				return err
			}
			info := buildVersion()
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(info)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "kube-ipvs %s (%s, %s)\n", info.Version, info.Go, info.Platform)
			return err
		},
	}
	addOutput(cmd, &output)
	return cmd
}

func addOutput(cmd *cobra.Command, output *string) {
	cmd.Flags().StringVarP(output, "output", "o", "text", "text or json")
}

func wantsJSON(cmd *cobra.Command, output string) (bool, error) {
	switch output {
	case "json":
		return true, nil
	case "text":
		return false, nil
	}
	return false, usageError{fmt.Errorf("--output %q: want text or json", output), cmd.CommandPath()}
}
