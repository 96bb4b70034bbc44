// Command realcluster prepares a cluster with kubelets on the host, and starts it in a lab guest: make cluster.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/realcluster"
	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/upstream"
)

const usage = `usage: realcluster prepare IMAGE-FOLDER   on the host: build programs, make and unpack images
       realcluster run COMMAND [ARG...]  in a guest: start a cluster, and run the command there
`

func init() {
	runtime.LockOSThread() // the kernel kills children when the thread that started them ends
}

func main() {
	status, err := command(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		status = 1
	}
	os.Exit(status)
}

func command(args []string) (status int, err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	checkout, err := upstream.Root()
	if err != nil {
		return 0, err
	}
	switch {
	case len(args) == 2 && args[0] == "prepare":
		return 0, realcluster.Prepare(ctx, checkout, args[1], os.Stderr)
	case len(args) > 1 && args[0] == "run":
		return run(ctx, checkout, args[1:])
	}
	fmt.Fprint(os.Stderr, usage)
	return 2, nil
}

// number parses NODES or ZONES.
func number(variable string, otherwise int) (int, error) {
	text := os.Getenv(variable)
	if text == "" {
		return otherwise, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > 9 {
		return 0, fmt.Errorf("%s is %q; it must be 1 to 9", strings.TrimPrefix(variable, "LAB_"), text)
	}
	return n, nil
}

func run(ctx context.Context, checkout string, args []string) (status int, err error) {
	if mode := os.Getenv("LAB_MODE"); mode == "" || mode == "native" {
		return 0, errors.New("a cluster needs a lab guest; use make cluster")
	}
	nodes, err := number("LAB_NODES", 2)
	if err != nil {
		return 0, err
	}
	zones, err := number("LAB_ZONES", 0)
	if err != nil {
		return 0, err
	}
	begin := time.Now()
	c, err := realcluster.Up(ctx, realcluster.Config{
		Checkout: checkout, Nodes: nodes, Zones: zones, Out: os.Getenv("LAB_OUT"),
		Logf: func(format string, args ...any) {
			fmt.Fprintf(os.Stderr, "cluster: %4.0f s: %s\n", time.Since(begin).Seconds(), fmt.Sprintf(format, args...))
		},
	})
	if err != nil {
		return 0, errors.Join(err, c.Stop())
	}
	// exec.Command would search the PATH of this process.
	cmd := exec.CommandContext(ctx, "/usr/bin/env", args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = c.Env()
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = nil
	}
	return cmd.ProcessState.ExitCode(), errors.Join(err, c.Stop())
}
