package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestMappings: the watch reports a process at the host's limit, but no process below the limit or with little
// memory.
func TestMappings(t *testing.T) {
	text, err := os.ReadFile(mappingsLimit)
	if err != nil {
		t.Skip(err)
	}
	limit, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		mappings, resident int
		want               bool
	}{
		"at the limit":             {limit, manyPages, true},
		"below it":                 {limit / 2, manyPages, false},
		"a process without memory": {limit, 100, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				proc := t.TempDir()
				for file, content := range map[string]string{"statm": fmt.Sprint("1000000 ", c.resident, " 1 1 0 1 0\n"), "maps": strings.Repeat("m\n", c.mappings)} {
					path := filepath.Join(proc, "7", file)
					if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
						t.Fatal(err)
					}
					if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
						t.Fatal(err)
					}
				}
				failed := make(chan error, 1)
				stop := make(chan struct{})
				go watchMappings(proc, time.Second, stop, func(err error) { failed <- err })
				time.Sleep(3 * time.Second)
				close(stop)
				synctest.Wait()
				if found := len(failed) > 0; found != c.want {
					t.Errorf("found %t", found)
				}
			})
		})
	}
}
