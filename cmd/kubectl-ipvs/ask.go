package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kube-ipvs/kube-ipvs/internal/fleet"
	"github.com/kube-ipvs/kube-ipvs/internal/fleet/pods"
	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
)

const (
	asTable = "table"
	asWide  = "wide"
	asJSON  = inspect.FormJSON
	asYAML  = inspect.FormYAML
	asName  = "name"
)

var forms = []string{asTable, asWide, asJSON, asYAML, asName}

func (o *options) check(q fleet.Question) error {
	switch {
	case !slices.Contains(forms, o.output):
		return fmt.Errorf("--output %q: use one of %s", o.output, strings.Join(forms, ", "))
	case o.ask.All && len(o.ask.Nodes) > 0:
		return errors.New("use either --node or --all-nodes")
	case o.watch && o.interval < time.Second:
		return fmt.Errorf("--watch-interval %s: must be at least 1s", o.interval)
	case o.timeout < 0 || o.ask.Timeout <= 0:
		return errors.New("--timeout must not be negative, and --node-timeout must be positive")
	}
	if err := o.table.CheckSort(fleet.Columns(q.Command)); err != nil {
		return err
	}
	_, err := q.Line()
	return err
}

func (o *options) run(cmd *cobra.Command, q fleet.Question) error {
	config := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(o.rules, &o.overrides)
	if !o.allNamespaces {
		namespace, _, err := config.Namespace()
		if err != nil {
			return err
		}
		q.Namespace = namespace
	}
	if err := o.check(q); err != nil {
		return usageError{err}
	}
	client, err := config.ClientConfig()
	if err != nil {
		return err
	}
	o.ask.Client, o.table.Wide = *client, o.output == asWide
	report, err := o.askNodes(cmd.Context(), q, progressOn(cmd.ErrOrStderr()))
	switch {
	case err != nil:
		return err
	case o.watch:
		return o.follow(cmd, q, report)
	}
	return errors.Join(o.print(cmd, report), statusOf(report))
}

func statusOf(report fleet.Report) error {
	if report.ExitStatus == 0 {
		return nil
	}
	return statusError(report.ExitStatus)
}

// askNodes returns the merged answers. If ctx ends, it returns the reports that have arrived.
func (o *options) askNodes(ctx context.Context, q fleet.Question, show *progress) (fleet.Report, error) {
	if o.timeout > 0 {
		limited, cancel := context.WithTimeoutCause(ctx, o.timeout, fmt.Errorf("--timeout %s was reached", o.timeout))
		defer cancel()
		ctx = limited
	}
	merger := fleet.NewMerger(q, o.output == asJSON || o.output == asYAML)
	missing, arrived := 0, 0
	ask := o.ask
	ask.Skip = merger.Skip
	notAsked, err := pods.Ask(ctx, ask, q, func(answer fleet.Answer, asking int) {
		merger.Add(answer)
		arrived++
		if answer.Error != "" {
			missing++
		}
		show.update(arrived, missing, asking)
	})
	show.end()
	if err != nil {
		return fleet.Report{}, err
	}
	stopped := ""
	switch cause := context.Cause(ctx); {
	case cause == nil || missing == 0 && arrived > 0 && notAsked == 0:
	case o.timeout > 0 && errors.Is(ctx.Err(), context.DeadlineExceeded):
		stopped = cause.Error()
	default:
		stopped = "interrupted"
	}
	return merger.Report(notAsked, stopped), nil
}

// follow queries the nodes periodically until the command is interrupted. It prints what has changed, and keeps only
// the latest report.
func (o *options) follow(cmd *cobra.Command, q fleet.Question, report fleet.Report) error {
	if q.Busiest() {
		return o.repeat(cmd, q, report)
	}
	ctx := cmd.Context()
	o.table.Widths = &[]int{fleet.EventWidth}
	changes := fleet.Compare(fleet.Report{}, report)
	for {
		if err := o.printChanges(cmd, changes, report); err != nil {
			return err
		}
		o.table.NoHeaders = true
		before := withoutDocuments(report)
		for report, changes = before, (fleet.Changes{}); changes.Empty(); {
			select {
			case <-ctx.Done():
				return statusOf(report)
			case <-time.After(o.interval):
			}
			now, err := o.askNodes(ctx, q, nil)
			switch {
			case ctx.Err() != nil: // a partial report would look like a change
			case err != nil:
				fmt.Fprintf(cmd.ErrOrStderr(), "kubectl-ipvs: %v; retrying in %s\n", err, o.interval)
			default:
				changes = fleet.Compare(before, now)
				if report = now; changes.Empty() {
					report = withoutDocuments(now)
				}
			}
		}
	}
}

// repeat queries the nodes periodically and prints each report.
func (o *options) repeat(cmd *cobra.Command, q fleet.Question, report fleet.Report) error {
	ctx := cmd.Context()
	o.table.Widths = &[]int{}
	for {
		if err := o.print(cmd, report); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return statusOf(report)
		case <-time.After(o.interval):
		}
		now, err := o.askNodes(ctx, q, nil)
		switch {
		case ctx.Err() != nil:
			return statusOf(report)
		case err != nil:
			fmt.Fprintf(cmd.ErrOrStderr(), "kubectl-ipvs: %v; retrying in %s\n", err, o.interval)
			continue
		}
		report = now
		if o.output == asYAML {
			fmt.Fprintln(cmd.OutOrStdout(), "---")
		}
	}
}

func withoutDocuments(report fleet.Report) fleet.Report {
	for i := range report.Nodes {
		report.Nodes[i].Document = nil
	}
	return report
}

func (o *options) printChanges(cmd *cobra.Command, changes fleet.Changes, report fleet.Report) error {
	switch o.output {
	case asTable, asWide:
		return changes.Print(cmd.OutOrStdout(), o.table)
	case asName:
		return fleet.PrintNames(cmd.OutOrStdout(), changes.Names())
	case asYAML:
		if o.table.NoHeaders {
			fmt.Fprintln(cmd.OutOrStdout(), "---")
		}
	}
	return o.print(cmd, report)
}

// print writes a report. With -o name, the notices go to stderr.
func (o *options) print(cmd *cobra.Command, report fleet.Report) error {
	if o.output == asName {
		for _, n := range report.Notices(false) {
			fmt.Fprintln(cmd.ErrOrStderr(), n)
		}
		return fleet.PrintNames(cmd.OutOrStdout(), report)
	}
	return inspect.Write(cmd.OutOrStdout(), o.output, report, func(w io.Writer) error { return fleet.Print(w, report, o.table) })
}

// progress shows on a terminal how many nodes have responded.
type progress struct{ w io.Writer }

// progressOn returns nil, which prints nothing, unless w is a terminal.
func progressOn(w io.Writer) *progress {
	if file, ok := w.(*os.File); ok {
		if info, err := file.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			return &progress{w}
		}
	}
	return nil
}

func (p *progress) update(arrived, missing, asking int) {
	if p != nil {
		fmt.Fprintf(p.w, "\r\x1b[Kqueried %d of %d nodes, %d did not respond", arrived, asking, missing)
	}
}

func (p *progress) end() {
	if p != nil {
		fmt.Fprint(p.w, "\r\x1b[K")
	}
}
