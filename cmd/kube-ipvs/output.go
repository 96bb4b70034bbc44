package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// The output formats.
const (
	asTable = "table"
	asWide  = "wide"
	asJSON  = "json"
	asYAML  = "yaml"
	asText  = "text"
	asName  = "name"
)

// textForms are the formats of commands whose text output is not a table.
var textForms = []string{asText, asJSON, asYAML}

func addOutput(cmd *cobra.Command, output *string) { addForms(cmd, output, textForms) }

func checkOutput(cmd *cobra.Command, output string) error { return checkForm(cmd, output, textForms) }

// addForms adds --output. The first format is the default.
func addForms(cmd *cobra.Command, output *string, forms []string) {
	cmd.Flags().StringVarP(output, "output", "o", forms[0], strings.Join(forms, ", "))
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(forms, cobra.ShellCompDirectiveNoFileComp))
}

func checkForm(cmd *cobra.Command, output string, forms []string) error {
	if slices.Contains(forms, output) {
		return nil
	}
	return usageError{fmt.Errorf("--output %q: use one of %s", output, strings.Join(forms, ", ")), cmd.CommandPath()}
}

// header starts every JSON and YAML document.
type header struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
}

func headerOf(kind string) header { return header{view.Version, kind} }

// encode prints a value as YAML or JSON, with the same fields.
func encode(w io.Writer, form string, value any) error {
	if form == asYAML {
		text, err := yaml.Marshal(value)
		if err != nil {
			return err
		}
		_, err = w.Write(text)
		return err
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(value)
}
