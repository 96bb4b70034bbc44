package inspect

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"

	"sigs.k8s.io/yaml"
)

// The output formats for programs.
const (
	FormJSON = "json"
	FormYAML = "yaml"
)

// Write writes a value as JSON or YAML, with the same fields. For other formats, it calls printText.
func Write(w io.Writer, form string, value any, printText func(io.Writer) error) error {
	out := bufio.NewWriter(w)
	var err error
	switch form {
	case FormYAML:
		var text []byte
		text, err = yaml.Marshal(value)
		_, _ = out.Write(text) // Flush returns the error
	case FormJSON:
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		err = e.Encode(value)
	default:
		err = printText(out)
	}
	return errors.Join(err, out.Flush())
}
