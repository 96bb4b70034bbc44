package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/ipset"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/ipvs"
	"github.com/kube-ipvs/kube-ipvs/internal/status"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// The forms in which inspection commands print.
const (
	asTable = "table"
	asWide  = "wide"
	asJSON  = "json"
	asYAML  = "yaml"
	asText  = "text"
)

// look is what all inspection commands are told: whom to ask, and how to print.
type look struct {
	socket, output string
	forms          []string // of output, the first is the usual one
}

func (l *look) addFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&l.socket, "status-socket", config.StatusSocket, "socket on which the agent of this node answers")
	cmd.Flags().StringVarP(&l.output, "output", "o", l.forms[0], strings.Join(l.forms, ", "))
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(l.forms, cobra.ShellCompDirectiveNoFileComp))
}

func (l *look) check(cmd *cobra.Command) error {
	if !slices.Contains(l.forms, l.output) {
		return usageError{fmt.Errorf("--output %q: want one of %s", l.output, strings.Join(l.forms, ", ")), cmd.CommandPath()}
	}
	return nil
}

// ask returns nil where no agent answers, and says so on stderr: the kernel tells a part all the same.
func (l *look) ask(cmd *cobra.Command, ask agent.Ask) (*view.View, error) {
	v, err := status.Get(cmd.Context(), l.socket, ask)
	if errors.Is(err, status.ErrNoAgent) {
		fmt.Fprintf(cmd.ErrOrStderr(), "%v; showing what the kernel alone tells\n", err)
		return nil, nil
	}
	return v, err
}

// print writes a document for programs, or lets the function print it for people.
func (l *look) print(w io.Writer, document any, forPeople func() error) error {
	switch l.output {
	case asJSON:
		return encode(w, document)
	case asYAML:
		text, err := yaml.Marshal(document)
		if err != nil {
			return err
		}
		_, err = w.Write(text)
		return err
	}
	return forPeople()
}

// serviceArg is the Service that the command is about; the zero value is for all.
func serviceArg(cmd *cobra.Command, args []string) (agent.Ask, error) {
	if len(args) == 0 {
		return agent.Ask{All: true}, nil
	}
	id, err := explain.ParseServiceID(args[0])
	if err != nil {
		return agent.Ask{}, usageError{err, cmd.CommandPath()}
	}
	return agent.Ask{Service: id}, nil
}

// services joins the agent's view with the kernel's table, or makes do with the latter.
func (l *look) services(cmd *cobra.Command, args []string) (inspect.ServiceList, error) {
	ask, err := serviceArg(cmd, args)
	if err != nil {
		return inspect.ServiceList{}, err
	}
	v, err := l.ask(cmd, ask)
	if err != nil {
		return inspect.ServiceList{}, err
	}
	table, err := readTable(cmd.Context())
	switch {
	case err != nil:
		return inspect.ServiceList{}, err
	case v != nil && len(args) > 0 && len(v.Services) == 0:
		return inspect.ServiceList{}, fmt.Errorf("this node serves no Service %s "+
			"(it may not exist, have no ClusterIP, or belong to another service proxy)", args[0])
	case v != nil:
		return inspect.ServiceListOf(v.Services, table.servers), nil
	case len(args) > 0:
		return inspect.ServiceList{}, fmt.Errorf("which virtual servers belong to %s is known to the agent only, and it does not answer", args[0])
	}
	return inspect.ServicesOfKernel(table.servers, table.ours), nil
}

// ipvsTable is the kernel's table, and which of it is ours.
type ipvsTable struct {
	servers inspect.Servers
	members map[string]map[kernel.Element]struct{}
	ledger  map[inet.Family]string
}

// ours says whether a ledger has the virtual server.
func (t *ipvsTable) ours(key kernel.ServerKey) bool {
	entry := want.LedgerEntry(t.ledger, key)
	_, recorded := t.members[entry.Set][entry.Element]
	return recorded
}

func readTable(ctx context.Context) (*ipvsTable, error) {
	t := &ipvsTable{ledger: plainBase().Ledger}
	servers, err := ipvs.New()
	if err != nil {
		return nil, err
	}
	sets, err := ipset.New()
	if err != nil {
		return nil, errors.Join(err, servers.Close())
	}
	var errs [4]error
	t.servers, errs[0] = servers.Read(ctx)
	_, t.members, errs[1] = sets.Read(ctx, compile.SetPrefix)
	errs[2], errs[3] = servers.Close(), sets.Close()
	return t, errors.Join(errs[:]...)
}

// plainBase is what agents want in the kernel however they are configured, and some rules besides.
func plainBase() want.Base { return compile.Base(compile.Config{Families: inet.Families}) }
