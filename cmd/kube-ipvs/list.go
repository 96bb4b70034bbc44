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
	"github.com/kube-ipvs/kube-ipvs/internal/machine"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// listFlags contains the flags that list commands share with kubectl get.
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
	addCheck(cmd, func() error {
		if l.everyone && l.namespace != "" {
			return errors.New("use either --namespace or --all-namespaces")
		}
		return nil
	})
}

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

// only filters the list by the namespace in the flags.
func (l *listFlags) only(list *inspect.ServiceList) error {
	if l.namespace == "" {
		return nil
	}
	if !list.Agent {
		return errors.New("--namespace: the agent does not respond, and only the agent knows which virtual servers belong to a namespace")
	}
	list.Items = slices.DeleteFunc(list.Items, func(s view.Service) bool { return s.Namespace != l.namespace })
	return nil
}

// services joins the agent's view with the kernel's table. If one of them is unavailable, it uses the other.
func (l *listFlags) services(cmd *cobra.Command, m *machine.Machine, args []string) (list inspect.ServiceList, err error) {
	ask, err := l.query(cmd, args)
	if err != nil {
		return list, err
	}
	v, err := l.ask(cmd, ask)
	if err != nil {
		return list, err
	}
	table, ours, unread := m.Table(cmd.Context())
	switch {
	case v == nil && unread != "":
		return list, fmt.Errorf("read the virtual servers of this node: %s", unread)
	case v == nil && len(args) > 0:
		return list, fmt.Errorf("the agent does not respond, and only the agent knows which virtual servers belong to %s", args[0])
	case v != nil && len(args) > 0 && len(v.Services) == 0:
		return list, fmt.Errorf("this node serves no Service %s (it may not exist, have no ClusterIP, or belong to another service proxy)", args[0])
	case unread != "":
		fmt.Fprintf(cmd.ErrOrStderr(), "could not read this node's virtual servers: %s; showing only the agent's view\n", unread)
	}
	list = inspect.JoinServices(v, table.Servers, ours, unread)
	err = l.only(&list)
	return list, err
}
