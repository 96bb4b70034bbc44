package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"

	"github.com/kube-ipvs/kube-ipvs/internal/ipvsadm"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/ipvs"
)

// Run runs one command line, without the program's name, in the network namespace of the calling thread. It returns the exit
// status. If the command reads IPVS, it writes note's text to stderr, unless the text is empty.
func Run(ctx context.Context, args []string, stdout, stderr io.Writer, note func(ipvsadm.Request) string) int {
	names := &systemNames{ctx: ctx}
	request, failure := ipvsadm.Parse(args, names)
	if failure != nil {
		fmt.Fprintln(stderr, failure.Text)
		return failure.Status
	}
	text, err := result(ctx, request, names)
	if err == nil {
		_, err = io.WriteString(stdout, text)
	}
	status := explain(err, stderr)
	if request.Command == ipvsadm.List || request.Command == ipvsadm.Save {
		if text := note(request); text != "" {
			fmt.Fprintln(stderr, text)
		}
	}
	return status
}

// errNoService uses ipvsadm's error text.
var errNoService = errors.New("No such service")

const cannotStart = "Can't initialize ipvs: %s\nAre you sure that IP Virtual Server is built in the kernel or as module?\n"

// explain prints an error, with ipvsadm's own text if there is one, and returns the exit status.
func explain(err error, stderr io.Writer) int {
	switch {
	case err == nil:
		return 0
	case errors.Is(err, kernel.ErrUnavailable):
		fmt.Fprintf(stderr, cannotStart, "Protocol not available")
		return ipvsadm.StatusUsage
	case errors.Is(err, syscall.EPERM):
		fmt.Fprintf(stderr, cannotStart, "Permission denied (you must be root)")
		return ipvsadm.StatusUsage
	}
	fmt.Fprintln(stderr, err)
	return ipvsadm.StatusListFailed
}

func result(ctx context.Context, r ipvsadm.Request, names ipvsadm.Names) (string, error) {
	switch r.Command {
	case ipvsadm.Help:
		return ipvsadm.HelpText, nil
	case ipvsadm.Version:
		return ipvsadm.VersionText, nil
	}
	backend, err := ipvs.New()
	if err != nil {
		return "", err
	}
	text, err := read(ctx, backend, r, names)
	return text, errors.Join(err, backend.Close())
}

func read(ctx context.Context, b *ipvs.Backend, r ipvsadm.Request, names ipvsadm.Names) (string, error) {
	switch r.Subject {
	case ipvsadm.Connections:
		conns, err := ipvs.Connections()
		return ipvsadm.PrintConnections(r, conns, names), err
	case ipvsadm.Timeouts:
		timeouts, err := b.Timeouts(ctx)
		return ipvsadm.PrintTimeouts(timeouts), err
	case ipvsadm.Daemons:
		daemons, err := b.Daemons(ctx)
		return ipvsadm.PrintDaemons(daemons), err
	}
	table, err := readTable(ctx, b, r.Service)
	if err != nil {
		return "", err
	}
	return ipvsadm.PrintTable(r, table, names), nil
}

func readTable(ctx context.Context, b *ipvs.Backend, only *kernel.TableKey) (kernel.Table, error) {
	if only == nil {
		return b.Inspect(ctx)
	}
	service, found, err := b.InspectOne(ctx, *only)
	if err == nil && !found {
		err = errNoService
	}
	return kernel.Table{Servers: []kernel.TableServer{service}}, err
}
