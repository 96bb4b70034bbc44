package conformance

import (
	"bufio"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Claims maps rows to the names of tests that prove them.
type Claims map[int][]string

// A test claims rows with a comment in its body, or in the body of a t.Run with a literal name:
//
//	// proves: 33, 34
//
// FindClaims relies on gofmt: the indentation determines the test to which a claim belongs.
var (
	testLine  = regexp.MustCompile(`^func (Test\w+)\(\w+ \*testing\.T\)`)
	runLine   = regexp.MustCompile(`^\s*(?:defer )?(?:\w+\.Run\(|inKernel\(t, \w+, )(.*)$`)
	nameOfRun = regexp.MustCompile(`^("(?:[^"\\]|\\.)*"), func\(`)
	claimLine = regexp.MustCompile(`^\s*// proves: (.*)$`)
)

// FindClaims reads the test files in a directory tree. A claim must be inside a test or in a subtest with a literal
// name, and its row must exist.
func FindClaims(root string) (Claims, error) {
	claims := Claims{}
	err := eachTestFile(root, claims.read)
	for _, tests := range claims {
		slices.Sort(tests)
	}
	return claims, err
}

// scope is a test or subtest that encloses the current line.
type scope struct {
	indent int
	name   string // empty if computed
}

func (c Claims) read(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	var around []scope
	lines := bufio.NewScanner(file)
	for number := 1; lines.Scan(); number++ {
		line := lines.Text()
		text := strings.TrimLeft(line, "\t")
		indent := len(line) - len(text)
		test, run, claim := testLine.FindStringSubmatch(line), runLine.FindStringSubmatch(line), claimLine.FindStringSubmatch(line)
		// A smaller indentation alone does not end a scope, because the line may be in a raw string.
		if test != nil || run != nil || claim != nil || strings.HasPrefix(text, "}") {
			around = slices.DeleteFunc(around, func(s scope) bool { return s.indent >= indent })
		}
		switch {
		case test != nil:
			around = append(around, scope{indent, test[1]})
		case run != nil:
			around = append(around, scope{indent, subtestName(run[1])})
		case claim != nil:
			if err := c.claim(around, claim[1]); err != nil {
				return fmt.Errorf("%s:%d: %w", path, number, err)
			}
		}
	}
	return lines.Err()
}

func (c Claims) claim(around []scope, rows string) error {
	if len(around) == 0 || around[0].indent != 0 {
		return fmt.Errorf("the claim is outside a test function")
	}
	var names []string
	for _, s := range around {
		if s.name == "" {
			return fmt.Errorf("the claim is in a subtest without a literal name")
		}
		names = append(names, s.name)
	}
	test := strings.Join(names, "/")
	for field := range strings.SplitSeq(rows, ",") {
		row, err := strconv.Atoi(strings.TrimSpace(field))
		if err != nil || row < 1 || row > len(Rows) {
			return fmt.Errorf("no row %q; use 1 to %d", strings.TrimSpace(field), len(Rows))
		}
		c[row] = append(c[row], test)
	}
	return nil
}

// subtestName returns the name in a call of Run as the testing package reports it, or "" if the name is computed.
func subtestName(arguments string) string {
	match := nameOfRun.FindStringSubmatch(arguments)
	if match == nil {
		return ""
	}
	name, err := strconv.Unquote(match[1])
	if err != nil {
		return ""
	}
	return strings.ReplaceAll(name, " ", "_")
}

func testExists(root, folder, test string) (bool, error) {
	found := false
	err := eachTestFile(filepath.Join(root, folder), func(path string) error {
		text, err := os.ReadFile(path)
		found = found || strings.Contains("\n"+string(text), "\nfunc "+test+"(")
		return err
	})
	return found, err
}

func eachTestFile(root string, do func(path string) error) error {
	return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && filepath.Base(path) == "conformance" {
			return filepath.SkipDir // its tests contain claims as data
		}
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		return do(path)
	})
}
