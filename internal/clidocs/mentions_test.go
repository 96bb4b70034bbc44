package clidocs

import (
	"slices"
	"testing"

	"github.com/spf13/cobra"
)

func TestMistakes(t *testing.T) {
	root := &cobra.Command{Use: "ask"}
	list := &cobra.Command{Use: "list NAME", Run: func(*cobra.Command, []string) {}}
	list.Flags().BoolP("all", "a", false, "")
	raw := &cobra.Command{Use: "raw", DisableFlagParsing: true, Run: func(*cobra.Command, []string) {}}
	root.AddCommand(list, raw)
	page := "Run `ask list web -a`, `ask raw --any`, `ask\nlost` or `mask list`.\n```sh\n$ ask list --all=true | ask list --none\nenter pod -- ask list \\\n  -z\n```\n`ask ...`"
	want := []string{"ask lost: ask has no command lost", "ask list --none: ask list has no flag --none", "ask list    -z: ask list has no flag -z"}
	if have := Mistakes(root, page); !slices.Equal(have, want) {
		t.Errorf("%q", have)
	}
}
