package config

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/spf13/pflag"
)

// byText compares ranges as they print; a list of none is the same as none.
var byText = cmp.Options{cmp.Transformer("text", netip.Prefix.String), cmpopts.EquateEmpty()}

// parse reads a command line as run does.
func parse(t testing.TB, args ...string) *Flags {
	t.Helper()
	var f Flags
	set := pflag.NewFlagSet("run", pflag.ContinueOnError)
	f.AddRun(set)
	if err := set.Parse(args); err != nil {
		t.Fatal(err)
	}
	return &f
}
