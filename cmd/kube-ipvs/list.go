//go:build linux

package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/machine"
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

// services returns the Services that the flags and the argument select.
func (l *listFlags) services(cmd *cobra.Command, m *machine.Machine, args []string) (list inspect.ServiceList, err error) {
	ask, err := l.query(cmd, args)
	if err != nil {
		return list, err
	}
	v, err := l.ask(cmd, ask)
	if err != nil {
		return list, err
	}
	list, unread, err := m.Services(cmd.Context(), l.socket, v, strings.Join(args, ""))
	if err != nil {
		return list, err
	}
	if unread != "" {
		fmt.Fprintf(cmd.ErrOrStderr(), "showing only the agent's view of the virtual servers: %s\n", unread)
	}
	err = list.Select(l.namespace)
	return list, err
}
