package config

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-ipvs/kube-ipvs/internal/goldentest"
)

// TestFiles loads each file in testdata without flags and compares the resulting configuration or errors with the
// golden file.
func TestFiles(t *testing.T) {
	for _, file := range files(t) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			loaded, err := loadFile(t, file)
			if err != nil {
				goldentest.Compare(t, file+".golden", "errors\n"+err.Error()+"\n")
				return
			}
			view, err := loaded.YAML()
			if err != nil {
				t.Fatal(err)
			}
			goldentest.Compare(t, file+".golden", "warnings\n"+strings.Join(append(loaded.Warnings, "view"), "\n")+"\n"+string(view))
		})
	}
}

func files(t *testing.T) []string {
	t.Helper()
	var files []string
	for _, pattern := range []string{"*.yaml", "*.json"} {
		found, err := filepath.Glob(filepath.Join("testdata", pattern))
		if err != nil || len(found) == 0 {
			t.Fatalf("no %s in testdata: %v", pattern, err)
		}
		files = append(files, found...)
	}
	return files
}

// loadFile loads a file under its base name, so that golden files contain no directory names.
func loadFile(t *testing.T, file string) (*Loaded, error) {
	t.Helper()
	content, err := readFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return (&Flags{File: filepath.Base(file)}).load(content)
}

// TestWith checks that With restores the settings from the output of Given.
func TestWith(t *testing.T) {
	for _, file := range files(t) {
		loaded, err := loadFile(t, file)
		if err != nil {
			continue
		}
		values := map[string]string{"no.such": "setting", "logging.level": "no such level"}
		for _, g := range loaded.Given() {
			values[g.Path] = g.Value
		}
		if d := cmp.Diff(&loaded.Settings, With(values), byText); d != "" {
			t.Errorf("%s: -want +have\n%s", file, d)
		}
	}
}

// Every printed form of a configuration can be loaded, and results in the same settings.
func TestPrintedConfigurationLoads(t *testing.T) {
	for _, file := range files(t) {
		loaded, err := loadFile(t, file)
		if err != nil {
			continue
		}
		for name, render := range map[string]func(*Loaded) ([]byte, error){
			"YAML": (*Loaded).YAML, "ChangedYAML": (*Loaded).ChangedYAML, "ChangedJSON": (*Loaded).ChangedJSON,
		} {
			t.Run(filepath.Base(file)+" "+name, func(t *testing.T) {
				text, err := render(loaded)
				if err != nil {
					t.Fatal(err)
				}
				again, err := (&Flags{File: "printed"}).load(text)
				if err != nil {
					t.Fatalf("%v\n%s", err, text)
				}
				if d := cmp.Diff(loaded.Settings, again.Settings, byText); d != "" {
					t.Errorf("the printed configuration differs after loading (-was +is):\n%s\n%s", d, text)
				}
				if len(again.Warnings) > 0 {
					t.Errorf("warnings: %q", again.Warnings)
				}
			})
		}
	}
}
