package scoreboard

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Target is a fuzz target.
type Target struct{ Package, Name string }

var fuzzFunction = regexp.MustCompile(`(?m)^func (Fuzz\w+)\(`)

// FuzzTargets finds the fuzz targets below a directory.
func FuzzTargets(folder string) (targets []Target, err error) {
	err = filepath.WalkDir(folder, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range fuzzFunction.FindAllStringSubmatch(string(text), -1) {
			targets = append(targets, Target{Package: "./" + filepath.ToSlash(filepath.Dir(path)), Name: m[1]})
		}
		return err
	})
	return targets, err
}
