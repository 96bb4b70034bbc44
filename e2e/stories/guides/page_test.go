package guides

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const samplePage = `# A page

<!-- before: prepare it -->
<!-- exits: 3 -->
'''console
$ one \
  more
out 1

out 2
$ cat > file <<'EOT'
$ not a command
EOT
$ silent
'''

1. In a list:

   <!-- not run: no such machine -->
   '''sh
   if true; then
     make
   fi
   '''
`

func TestParse(t *testing.T) {
	page, err := parse("page.md", strings.ReplaceAll(samplePage, "'''", "```"))
	if err != nil {
		t.Fatal(err)
	}
	if len(page.Blocks) != 2 {
		t.Fatalf("%d blocks", len(page.Blocks))
	}
	first, second := page.Blocks[0], page.Blocks[1]
	if first.Line != 5 || first.Kind != "console" || first.Exits != 3 || len(first.Before) != 1 || first.Before[0] != "prepare it" {
		t.Errorf("%+v", first)
	}
	commands, err := first.Commands()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]Command{
		{Text: "one \\\n  more", Shown: []string{"out 1", "", "out 2"}},
		{Text: "cat > file <<'EOT'\n$ not a command\nEOT"},
		{Text: "silent"},
	}, commands); diff != "" {
		t.Errorf("commands differ (-want +got):\n%s", diff)
	}
	if second.NotRun != "no such machine" || second.Exits != 0 {
		t.Errorf("%+v", second)
	}
	if diff := cmp.Diff([]string{"if true; then", "  make", "fi"}, second.Text); diff != "" {
		t.Errorf("text differs (-want +got):\n%s", diff)
	}
}

func TestParseRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"```sh\nmake":                       "not closed",
		"<!-- exits: 3 -->\nprose":          "must be directly before",
		"<!-- exits: three -->\n```sh\n```": "three",
	} {
		if _, err := parse("page.md", text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
	if _, err := (Block{Text: []string{"out"}}).Commands(); err == nil {
		t.Error("accepted a console block that starts with output")
	}
}
