package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
	"github.com/spf13/cobra"
)

// These variables are set at link time, because images and releases are built outside a git repository.
var (
	version = "dev"
	commit  string
)

type versionInfo struct {
	view.Header
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func buildVersion() versionInfo {
	info := versionInfo{view.HeaderOf("Version"), version, commit, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
	if build, ok := debug.ReadBuildInfo(); ok && commit == "" {
		for _, s := range build.Settings {
			if s.Key == "vcs.revision" {
				info.Commit = s.Value
			}
		}
	}
	return info
}

// String returns the line that version prints.
func (i versionInfo) String() string {
	details := []string{i.Go, i.Platform}
	if i.Commit != "" {
		details = append([]string{"commit " + i.Commit}, details...)
	}
	return fmt.Sprintf("kube-ipvs %s (%s)", i.Version, strings.Join(details, ", "))
}

func newVersion() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Print the version",
		Example: "  kube-ipvs version\n  kube-ipvs version -o json",
		Args:    noArguments,
		RunE:    func(cmd *cobra.Command, _ []string) error { return printVersion(cmd, output) },
	}
	addOutput(cmd, &output)
	return cmd
}

func printVersion(cmd *cobra.Command, output string) error {
	info := buildVersion()
	return inspect.Write(cmd.OutOrStdout(), output, info, func(w io.Writer) error {
		_, err := fmt.Fprintln(w, info)
		return err
	})
}
