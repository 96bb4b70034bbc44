//go:build linux

package main

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/status"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

func newHistory() *cobra.Command {
	h := historyCommand{inspection: inspection{forms: []string{asTable, asWide, asJSON, asYAML, asName}}}
	cmd := &cobra.Command{
		Use:   "history",
		Short: "Show what the agent of this node changed, repaired and failed to do, and why",
		Long: `history shows the agent's syncs that failed or that changed or repaired something, oldest first: when and why
each ran, the Services that it touched, what it added (+), changed (~) and removed (-), how long it took, and
how it ended. -o wide adds the duration of each stage and the kinds of objects; -o json has all details.

The agent remembers about a thousand of these syncs, and forgets them when it restarts. Consecutive syncs with the
same failure or repair share one line.

An entry lists at most 50 Services. --service also shows entries with more Services, because their lists are
incomplete.`,
		Example: `  kube-ipvs history --since 1h
  kube-ipvs history --service shop/cart -o wide
  kube-ipvs history --repairs --failed
  kube-ipvs history --limit 1 -o yaml
  kube-ipvs history --watch`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			h.table = inspect.Table{Wide: h.output == asWide, NoHeaders: h.headless, Widths: &[]int{}}
			if h.watch {
				return h.follow(cmd)
			}
			_, err := h.show(cmd, nil)
			return err
		},
	}
	h.addFlags(cmd)
	return cmd
}

type historyCommand struct {
	inspection
	filter          view.HistoryFilter
	since           time.Duration
	headless, watch bool
	table           inspect.Table
}

func (h *historyCommand) addFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&h.filter.Service, "service", "", "show only syncs that touched this Service (NAMESPACE/NAME)")
	flags.DurationVar(&h.since, "since", 0, "show only syncs newer than this duration, such as 10m; 0 for all")
	flags.BoolVar(&h.filter.Repairs, "repairs", false, "show only syncs that repaired drift; with --failed, also syncs that failed")
	flags.BoolVar(&h.filter.Failed, "failed", false, "show only syncs that failed; with --repairs, also syncs that repaired drift")
	flags.IntVar(&h.filter.Limit, "limit", 0, "show at most this many syncs, the latest ones; 0 for all")
	flags.BoolVarP(&h.watch, "watch", "w", false, "after the list, show new syncs as they happen")
	flags.BoolVar(&h.headless, "no-headers", false, "print tables without column titles")
	h.inspection.addFlags(cmd)
	addCheck(cmd, func() error {
		if h.filter.Service != "" {
			if _, err := explain.ParseServiceID(h.filter.Service); err != nil {
				return fmt.Errorf("--service %w", err)
			}
		}
		switch {
		case h.since < 0:
			return fmt.Errorf("--since %s: use a positive duration", h.since)
		case h.filter.Limit < 0:
			return fmt.Errorf("--limit %d: use 0 or more", h.filter.Limit)
		}
		return nil
	})
}

// show prints the selected entries that are not in shown. It returns all entries.
func (h *historyCommand) show(cmd *cobra.Command, shown []*view.PastSync) ([]*view.PastSync, error) {
	v, silence, err := status.Ask(cmd.Context(), h.socket, agent.Query{History: true})
	if silence != nil {
		err = fmt.Errorf("only the agent knows its history: %w", silence)
	}
	if err != nil {
		return nil, err
	}
	if noteMissing(cmd, v); v.History == nil {
		return nil, errors.New("the agent has no history: its version differs from this command's")
	}
	if h.filter.Since = (time.Time{}); h.since > 0 {
		h.filter.Since = v.Time.Add(-h.since)
	}
	list := inspect.HistoryOf(v, h.filter.Select(v.History.News(shown)))
	if shown != nil && len(list.Items) == 0 {
		return v.History.Entries, nil
	}
	if shown != nil && h.output == asYAML {
		fmt.Fprintln(cmd.OutOrStdout(), "---")
	}
	return v.History.Entries, inspect.Write(cmd.OutOrStdout(), h.output, list, func(w io.Writer) error {
		if h.output == asName {
			return inspect.PrintHistoryNames(w, list)
		}
		return inspect.PrintHistory(w, list, h.table)
	})
}

const watchInterval = 2 * time.Second

// follow shows the entries, and then new ones until the command is interrupted.
func (h *historyCommand) follow(cmd *cobra.Command) error {
	shown, err := h.show(cmd, nil)
	if err != nil {
		return err
	}
	h.table.NoHeaders, h.filter.Limit = true, 0
	for wait(cmd.Context(), watchInterval) == nil {
		now, err := h.show(cmd, shown)
		switch {
		case cmd.Context().Err() != nil:
		case err != nil:
			fmt.Fprintf(cmd.ErrOrStderr(), "kube-ipvs: %v; retrying in %s\n", err, watchInterval)
		default:
			shown = now
		}
	}
	return nil
}
