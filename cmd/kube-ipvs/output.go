package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

const (
	asTable = "table"
	asWide  = "wide"
	asJSON  = "json"
	asYAML  = "yaml"
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

// addCheck adds a check of a command's flags. It runs before the checks that were added earlier, and its errors are
// usage errors.
func addCheck(cmd *cobra.Command, check func() error) {
	others := cmd.PreRunE
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
		if err := check(); err != nil {
			return usageError{err, cmd.CommandPath()}
		}
		if others == nil {
			return nil
		}
		return others(cmd, args)
	}
}

type list[T any] struct {
	view.Header
	Items []T `json:"items"`
}

// printAs prints a value as YAML or JSON, with the same fields. For other formats, it calls printText.
func printAs(w io.Writer, form string, value any, printText func(io.Writer) error) error {
	out := bufio.NewWriter(w)
	var err error
	switch form {
	case asYAML:
		var text []byte
		text, err = yaml.Marshal(value)
		_, _ = out.Write(text) // Flush returns the error
	case asJSON:
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		err = e.Encode(value)
	default:
		err = printText(out)
	}
	return errors.Join(err, out.Flush())
}
