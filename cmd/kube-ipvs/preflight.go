package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/preflight"
)

// errNotFit is what preflight fails with.
var errNotFit = errors.New("this node cannot serve Services; see above")

func newPreflight(m *machine) *cobra.Command {
	var flags config.Flags
	var output string
	cmd := &cobra.Command{
		Use:   "preflight",
		Short: "Say what this node lacks to serve Services, and what to do about it",
		Long: `preflight asks this node's kernel for everything the agent uses: modules, schedulers, set types,
iptables, capabilities, sysctls. It changes nothing (asking may load a kernel module). Its exit status
is 1 if something is missing without which no Service works.`,
		Example: "  kube-ipvs preflight\n  kube-ipvs preflight --ipvs-scheduler wlc -o json",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(cmd, output); err != nil {
				return err
			}
			loaded, err := loadFlags(cmd, &flags)
			if err != nil {
				return err
			}
			found := check(cmd.Context(), m, &loaded.Settings)
			return errors.Join(printFindings(cmd.OutOrStdout(), output, found), fatal(found))
		},
	}
	flags.AddCompile(cmd.Flags())
	addOutput(cmd, &output)
	return cmd
}

// findingList is what preflight prints for programs.
type findingList struct {
	header
	Items []preflight.Finding `json:"items"`
}

func printFindings(w io.Writer, output string, found []preflight.Finding) error {
	if output != asText {
		return encode(w, output, findingList{headerOf("FindingList"), append([]preflight.Finding{}, found...)})
	}
	if len(found) == 0 {
		fmt.Fprintln(w, "nothing is missing")
	}
	for _, f := range found {
		fmt.Fprintln(w, severity(f), f)
	}
	return nil
}

// check asks the machine for what the settings make the agent use.
func check(ctx context.Context, m *machine, settings *config.Settings) []preflight.Finding {
	cfg := compile.Config{Host: compile.Host{Families: inet.Families}, Settings: settings.Compile()}
	return m.check(ctx, preflight.Needs{
		Schedulers: slices.Compact([]string{cfg.Scheduler, model.LastResort}),
		Families:   cfg.Families,
		Sysctls:    compile.Base(cfg).Sysctls,
	})
}

func severity(f preflight.Finding) string {
	if f.Fatal {
		return "FATAL  "
	}
	return "warning"
}

func fatal(found []preflight.Finding) error {
	for _, f := range found {
		if f.Fatal {
			return errNotFit
		}
	}
	return nil
}

// logFindings tells what is missing; it fails where no Service could work.
func logFindings(log *zap.Logger, found []preflight.Finding) error {
	for _, f := range found {
		if f.Fatal {
			log.Error(f.String())
		} else {
			log.Warn(f.String())
		}
	}
	return fatal(found)
}
