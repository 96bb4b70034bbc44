package realcluster

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

var shell = regexp.MustCompile("(?s)\n```sh\n(.*?)\n```\n")

// asPrinted runs the block of a page that begins with a command, and returns its output. It replaces nothing but the given placeholders.
func (s stage) asPrinted(page, command string, placeholders ...string) string {
	s.t.Helper()
	text, err := os.ReadFile(filepath.Join(s.Checkout, page))
	if err != nil {
		s.t.Fatal(err)
	}
	for _, block := range shell.FindAllStringSubmatch(string(text), -1) {
		if !strings.HasPrefix(block[1], command) {
			continue
		}
		out, err := s.Run("sh", "-ec", strings.NewReplacer(placeholders...).Replace(block[1]))
		if err != nil {
			s.t.Fatal(err)
		}
		return out
	}
	s.t.Fatalf("%s has no block that begins with %q", page, command)
	return ""
}
