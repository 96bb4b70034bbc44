package internal

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const packageList = "e2e/lab/packages.txt"

var aptInstall = regexp.MustCompile(`\bapt(?:-get)? install (?:\\\n|.)*`)

// TestOneListOfPackages: only one file lists the packages that the tests need. Another file counts as a second list if
// it names two packages that are not also programs, or if one of its commands installs two packages.
func TestOneListOfPackages(t *testing.T) {
	names, programs := listedPackages(t)
	notPrograms := slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		return slices.Contains(programs, name) || name == "prometheus" // other files may mention the product
	})
	err := filepath.WalkDir("..", func(file string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && slices.Contains([]string{".git", ".cache", "bin"}, entry.Name()):
			return fs.SkipDir
		case !entry.Type().IsRegular() || file == filepath.Join("..", packageList):
			return nil
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		found := containedIn(string(text), notPrograms)
		for _, command := range aptInstall.FindAllString(string(text), -1) {
			if installed := containedIn(command, names); len(installed) > 1 {
				found = append(found, installed...)
			}
		}
		if len(found) > 1 {
			t.Errorf("%s names the packages %s; list them in %s only", file, strings.Join(found, ", "), packageList)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func listedPackages(t *testing.T) (packages, programs []string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", packageList))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) == 0 || line[0] == '#' || line[0] == '[' {
			continue
		}
		if len(fields) != 4 {
			t.Errorf("%s: %q has %d columns, want 4", packageList, line, len(fields))
			continue
		}
		programs = append(programs, filepath.Base(fields[0]))
		packages = append(packages, fields[1])
	}
	if len(packages) == 0 {
		t.Fatalf("%s lists no packages", packageList)
	}
	slices.Sort(packages)
	return slices.Compact(packages), programs
}

// containedIn returns the names that occur in a text as words.
func containedIn(text string, names []string) []string {
	words := strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" \t\n\"'`,.;:&|()[]{}<>\\=", r) })
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !slices.Contains(words, name) })
}
