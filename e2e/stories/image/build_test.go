package image

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

const (
	testVersion = "v0.0.0-test"
	testCommit  = "0123456789abcdef0123456789abcdef01234567"
)

func build(t *testing.T, environment ...string) string {
	t.Helper()
	dir := t.TempDir()
	if err := recipe(t).BuildAgent(dir, testVersion, testCommit, environment...); err != nil {
		t.Fatal(err)
	}
	return filepath.Join(dir, "kube-ipvs")
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func TestBuildOfTheAgent(t *testing.T) {
	file := build(t)
	out, err := exec.Command(file, "version", "-o", "json").Output()
	var info struct{ Version, Commit string }
	if err != nil || json.Unmarshal(out, &info) != nil || info.Version != testVersion || info.Commit != testCommit {
		t.Errorf("version: %v, %s; want %s, %s", err, out, testVersion, testCommit)
	}
	if needed, interpreter := dependencies(t, file); interpreter != "" || len(needed) > 0 {
		t.Errorf("the agent needs the loader %q and the libraries %v, want a static binary", interpreter, needed)
	}
	if !bytes.Equal(read(t, file), read(t, build(t))) {
		t.Error("two builds of the same sources in different directories differ")
	}
}

// The code with which tests pause or kill the agent must be compiled only into a separate build.
func TestNothingOfTestsIsInTheAgent(t *testing.T) {
	variable := []byte("KUBE_IPVS_KILL_AFTER")
	if bytes.Contains(read(t, build(t)), variable) {
		t.Errorf("the agent reads $%s", variable)
	}
	if !bytes.Contains(read(t, build(t, "GOFLAGS=-tags=pause")), variable) {
		t.Errorf("this test is ineffective: no build reads $%s", variable)
	}
}

func TestAgentIsBuiltForBoth(t *testing.T) {
	for architecture, machine := range map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64} {
		binary, err := elf.Open(build(t, "GOARCH="+architecture))
		if err != nil {
			t.Fatal(err)
		}
		defer binary.Close()
		if binary.Machine != machine {
			t.Errorf("GOARCH=%s produces a program for %s", architecture, binary.Machine)
		}
	}
}

func dependencies(t *testing.T, file string) (needed []string, interpreter string) {
	t.Helper()
	binary, err := elf.Open(file)
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	defer binary.Close()
	if needed, err = binary.ImportedLibraries(); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	for _, p := range binary.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		path := make([]byte, p.Filesz)
		if _, err := p.ReadAt(path, 0); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		interpreter = string(bytes.TrimRight(path, "\x00"))
	}
	return needed, interpreter
}
