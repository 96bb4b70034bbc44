package record

import (
	"strings"
	"testing"
)

func TestFill(t *testing.T) {
	const table, picture = "<!-- table a -->\nold\n<!-- end -->\n", "<!-- picture b.svg -->\n<!-- end -->\n"
	contents := map[string]string{"table a": "new\n", "picture b.svg": "![b](b.svg)\n"}
	for _, c := range []struct{ page, want, fails string }{
		{"1\n" + table + "2\n" + picture + "3\n", "1\n<!-- table a -->\nnew\n<!-- end -->\n2\n<!-- picture b.svg -->\n![b](b.svg)\n<!-- end -->\n3\n", ""},
		{table, "", "page.md has no section picture b.svg"},
		{table + table + picture, "", "repeated section table a"},
		{table + picture + "<!-- table c -->\n<!-- end -->\n", "", "unknown or repeated section table c"},
	} {
		got, err := Fill("page.md", c.page, contents)
		if c.fails == "" && (err != nil || got != c.want) {
			t.Errorf("%q becomes %q, %v; want %q", c.page, got, err, c.want)
		}
		if c.fails != "" && (err == nil || !strings.Contains(err.Error(), c.fails)) {
			t.Errorf("%q: error %v, want %q", c.page, err, c.fails)
		}
	}
}
