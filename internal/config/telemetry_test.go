package config

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func TestServerFlags(t *testing.T) {
	for _, c := range []struct {
		args []string
		want []string // parts of the error; none for no error
	}{
		{nil, nil},
		{[]string{"--healthz-bind-address=", "--metrics-bind-address="}, nil},
		{[]string{"--healthz-bind-address=[::]:10256", "--metrics-bind-address=[::1]:10249", "--profiling"}, nil},
		{[]string{"--healthz-bind-address=0.0.0.0"}, []string{`--healthz-bind-address "0.0.0.0"`, "[::]:10256"}},
		{[]string{"--healthz-bind-address=:10256"}, []string{`--healthz-bind-address ":10256"`, "IP address"}},
		{[]string{"--metrics-bind-address=localhost:10249"}, []string{`--metrics-bind-address "localhost:10249"`, "IP address"}},
		{[]string{"--metrics-bind-address=127.0.0.1:0"}, []string{`--metrics-bind-address "127.0.0.1:0"`, "1 to 65535"}},
		{[]string{"--metrics-bind-address=127.0.0.1:65536"}, []string{`"127.0.0.1:65536"`, "1 to 65535"}},
		{[]string{"--metrics-bind-address=0.0.0.0:10256"}, []string{"--healthz-bind-address", "--metrics-bind-address", "two addresses"}},
		{[]string{"--metrics-bind-address=", "--profiling"}, []string{"--profiling", "127.0.0.1:10249"}},
	} {
		t.Run(strings.Join(c.args, " "), func(t *testing.T) {
			var f Flags
			set := pflag.NewFlagSet("run", pflag.ContinueOnError)
			f.AddRun(set)
			if err := set.Parse(c.args); err != nil {
				t.Fatal(err)
			}
			err := f.Run()
			if (err != nil) != (len(c.want) > 0) {
				t.Fatalf("error %v, want parts %q", err, c.want)
			}
			for _, part := range c.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error does not say %q: %v", part, err)
				}
			}
		})
	}
}
