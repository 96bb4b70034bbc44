package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// listFlags has the flags of commands that list objects, as kubectl get has them.
type listFlags struct {
	inspection
	namespace, sortBy  string
	everyone, headless bool
}

func (l *listFlags) addFlags(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&l.namespace, "namespace", "n", "", "show only this namespace (default: all)")
	cmd.Flags().BoolVarP(&l.everyone, "all-namespaces", "A", false, "show all namespaces (the default)")
	cmd.Flags().BoolVar(&l.headless, "no-headers", false, "print tables without column titles")
	cmd.Flags().StringVar(&l.sortBy, "sort-by", "", "sort tables by this column, numbers by value")
	l.inspection.addFlags(cmd)
}

func (l *listFlags) check(cmd *cobra.Command) error {
	if l.everyone && l.namespace != "" {
		return usageError{errors.New("use either --namespace or --all-namespaces"), cmd.CommandPath()}
	}
	return l.inspection.check(cmd)
}

// table returns the form of tables.
func (l *listFlags) table() inspect.Table {
	return inspect.Table{Wide: l.output == asWide, NoHeaders: l.headless, SortBy: l.sortBy}
}

// query parses the optional argument: NAMESPACE/NAME, or NAME with --namespace.
func (l *listFlags) query(cmd *cobra.Command, args []string) (agent.Query, error) {
	if len(args) == 0 {
		return agent.Query{All: true}, nil
	}
	text := args[0]
	if l.namespace != "" && !strings.Contains(text, "/") {
		text = l.namespace + "/" + text
	}
	id, err := explain.ParseServiceID(text)
	if err == nil && l.namespace != "" && id.Namespace != l.namespace {
		err = fmt.Errorf("%q is not in --namespace %s", text, l.namespace)
	}
	if err != nil {
		return agent.Query{}, usageError{err, cmd.CommandPath()}
	}
	return agent.Query{Service: id}, nil
}

// only keeps the Services of the namespace.
func (l *listFlags) only(list *inspect.ServiceList) error {
	if l.namespace == "" {
		return nil
	}
	if !list.Agent {
		return errors.New("--namespace: only the agent knows which virtual servers belong to a namespace, and it does not respond")
	}
	list.Items = slices.DeleteFunc(list.Items, func(s view.Service) bool { return s.Namespace != l.namespace })
	return nil
}

// services joins the agent's view with the kernel's table, or uses whichever is available.
func (l *listFlags) services(cmd *cobra.Command, m *machine, args []string) (inspect.ServiceList, error) {
	list, err := l.join(cmd, m, args)
	if err == nil {
		err = l.only(&list)
	}
	return list, err
}

func (l *listFlags) join(cmd *cobra.Command, m *machine, args []string) (inspect.ServiceList, error) {
	ask, err := l.query(cmd, args)
	if err != nil {
		return inspect.ServiceList{}, err
	}
	v, err := l.ask(cmd, ask)
	if err != nil {
		return inspect.ServiceList{}, err
	}
	table, unreadable := m.table(cmd.Context())
	switch {
	case v == nil && unreadable != nil:
		return inspect.ServiceList{}, fmt.Errorf("read the virtual servers of this node: %s", plainly(unreadable))
	case v != nil && len(args) > 0 && len(v.Services) == 0:
		return inspect.ServiceList{}, fmt.Errorf("this node serves no Service %s "+
			"(it may not exist, have no ClusterIP, or belong to another service proxy)", args[0])
	case v != nil && unreadable != nil:
		fmt.Fprintf(cmd.ErrOrStderr(), "the virtual servers of this node could not be read: %s; showing only what the agent knows\n", plainly(unreadable))
		return inspect.ServicesOfAgent(v.Services, plainly(unreadable)), nil
	case v != nil:
		return inspect.ServiceListOf(v.Services, table.servers), nil
	case len(args) > 0:
		return inspect.ServiceList{}, fmt.Errorf("only the agent knows which virtual servers belong to %s, and it does not respond", args[0])
	}
	return inspect.ServicesOfKernel(table.servers, table.ours), nil
}
