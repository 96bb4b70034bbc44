package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

const (
	asTable = "table"
	asWide  = "wide"
	asJSON  = inspect.FormJSON
	asYAML  = inspect.FormYAML
	asText  = "text"
	asName  = "name"
)

var textForms = []string{asText, asJSON, asYAML}

func addOutput(cmd *cobra.Command, output *string) { addForms(cmd, output, textForms) }

// addForms adds --output. The first format is the default.
func addForms(cmd *cobra.Command, output *string, forms []string) {
	cmd.Flags().StringVarP(output, "output", "o", forms[0], strings.Join(forms, ", "))
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(forms, cobra.ShellCompDirectiveNoFileComp))
	addCheck(cmd, func() error {
		if slices.Contains(forms, *output) {
			return nil
		}
		return fmt.Errorf("--output %q: use one of %s", *output, strings.Join(forms, ", "))
	})
}

type list[T any] struct {
	view.Header
	Items []T `json:"items"`
}
