package config

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/spf13/pflag"
)

// byText compares ranges as text. An empty list equals nil.
var byText = cmp.Options{cmp.Transformer("text", netip.Prefix.String), cmpopts.EquateEmpty()}

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
