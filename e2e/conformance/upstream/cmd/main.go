// Command cmd runs Kubernetes' own end-to-end tests in a cluster with real kubelets: make k8s-e2e. It skips specs
// that passed in an earlier run with the same folder.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/conformance/upstream"
	"github.com/kube-ipvs/kube-ipvs/e2e/record"
	programs "github.com/kube-ipvs/kube-ipvs/e2e/testbed/upstream"
)

func main() {
	focus := flag.String("focus", "", "regular expression of the specs to run")
	skip := flag.String("skip", "", "regular expression of the specs to skip; empty skips none")
	folder := flag.String("dir", "", "folder for outcomes and output")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	failed, err := run(ctx, *focus, *skip, *folder, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, "k8s-e2e:", err)
	}
	if err != nil || failed {
		os.Exit(1)
	}
}

// run runs the remaining specs. lab is a command that starts a cluster and runs another command in it.
func run(ctx context.Context, focus, skip, folder string, lab []string) (failed bool, err error) {
	checkout, err := programs.Root()
	if err != nil {
		return false, err
	}
	version, err := programs.Version(checkout, programs.E2ETest)
	if err != nil {
		return false, err
	}
	specs, err := choose(ctx, checkout, focus, skip)
	if err != nil {
		return false, err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return false, err
	}
	file := filepath.Join(folder, "outcomes.jsonl")
	before, err := record.Read[record.Test](file)
	if err != nil {
		return false, err
	}
	left := upstream.Remaining(specs, before)
	fmt.Fprintf(os.Stderr, "k8s-e2e: %d specs, %d of them to run\n", len(specs), len(left))
	var broken error
	if len(left) > 0 {
		broken = runSpecs(ctx, left, version, file, filepath.Join(folder, time.Now().UTC().Format("20060102T150405")+".log"), lab)
	}
	after, err := record.Read[record.Test](file)
	if err != nil {
		return false, err
	}
	fmt.Print(upstream.Table(record.Replace(nil, after)))
	missing := upstream.Remaining(specs, after)
	if len(missing) > 0 {
		return true, errors.Join(broken, fmt.Errorf("%d specs failed, were skipped or did not run; the same command runs them again", len(missing)))
	}
	return false, nil
}

func choose(ctx context.Context, checkout, focus, skip string) ([]string, error) {
	wanted, err := regexp.Compile(focus)
	if err != nil {
		return nil, fmt.Errorf("FOCUS: %w", err)
	}
	if skip == "" {
		skip = "$^"
	}
	unwanted, err := regexp.Compile(skip)
	if err != nil {
		return nil, fmt.Errorf("SKIP: %w", err)
	}
	program, err := programs.Path(checkout, programs.E2ETest)
	if err != nil {
		return nil, err
	}
	list, err := exec.CommandContext(ctx, program, "--list-tests").Output()
	if err != nil {
		return nil, fmt.Errorf("list the specs: %w", err)
	}
	specs := upstream.Listed(string(list), wanted, unwanted)
	if len(specs) == 0 {
		return nil, fmt.Errorf("no spec matches %q", focus)
	}
	return specs, nil
}

// runSpecs runs specs in one cluster. It appends each outcome to file as soon as it is known, and writes the output
// to log.
func runSpecs(ctx context.Context, specs []string, version, file, log string, lab []string) error {
	var quoted []string
	for _, spec := range specs {
		quoted = append(quoted, regexp.QuoteMeta(spec))
	}
	// The limit is for user-mode Linux, whose processes must be small.
	const start = upstream.AnnounceKernel + `; GOMEMLIMIT=150MiB exec e2e.test "$@"`
	cmd := exec.CommandContext(ctx, lab[0], append(lab[1:], "sh", "-c", start, "e2e.test",
		"--provider=local", "--num-nodes="+cmp.Or(os.Getenv("LAB_NODES"), "2"), "--ginkgo.v", "--ginkgo.no-color",
		"--ginkgo.seed=1", "--ginkgo.timeout=24h", "--disable-log-dump", "--dump-logs-on-failure=false",
		"--ginkgo.focus="+strings.Join(quoted, "|"))...)
	cmd.Stderr = os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = time.Minute // time until the guest is killed
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	whole, err := os.Create(log)
	if err != nil {
		return err
	}
	defer whole.Close()
	if err := cmd.Start(); err != nil {
		return err
	}
	var unsaved error
	err = upstream.Follow(io.TeeReader(stdout, whole), specs, func(t record.Test) {
		fmt.Fprintf(os.Stderr, "k8s-e2e: %s %s (%d s) %s\n", t.Status, t.Test, t.Seconds, t.Reason)
		t.Figures = []string{"Kubernetes " + version}
		unsaved = errors.Join(unsaved, record.Append(file, t))
	})
	return errors.Join(err, unsaved, cmd.Wait())
}
