package chart

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// requireVariable makes tests fail instead of skip where they cannot run.
const requireVariable = "KUBE_IPVS_E2E"

const testVersion = "v0.0.0-test"

// agent is the program as the Dockerfile builds it.
var agent struct {
	once    sync.Once
	content []byte
}

func program(t *testing.T) string {
	t.Helper()
	agent.once.Do(func() { agent.content = buildAgent(t) })
	if agent.content == nil {
		t.Fatal("the agent could not be built; an earlier test says why")
	}
	file := filepath.Join(t.TempDir(), "kube-ipvs")
	if err := os.WriteFile(file, agent.content, 0o755); err != nil {
		t.Fatal(err)
	}
	return file
}

// buildAgent runs the Dockerfile's command on copies of what it copies.
func buildAgent(t *testing.T, environment ...string) []byte {
	t.Helper()
	dir := t.TempDir()
	for _, name := range copied(t) {
		if out, err := exec.Command("cp", "-r", filepath.Join(root, name), dir).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
	}
	build := exec.Command("sh", "-c", command(t, "go build"))
	build.Dir = dir
	build.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off", "OUT="+dir, "VERSION="+testVersion)
	build.Env = append(build.Env, environment...)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the agent as the Dockerfile does: %v\n%s", err, out)
	}
	content, err := os.ReadFile(filepath.Join(dir, "kube-ipvs"))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func TestAgentOfTheImage(t *testing.T) {
	file := program(t)
	out, err := exec.Command(file, "version", "-o", "json").Output()
	var info struct{ Version string }
	if err != nil || json.Unmarshal(out, &info) != nil || info.Version != testVersion {
		t.Errorf("version: %v, %s; want %s", err, out, testVersion)
	}
	binary, err := elf.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer binary.Close()
	for _, p := range binary.Progs {
		if p.Type == elf.PT_INTERP {
			t.Error("the agent needs a dynamic loader")
		}
	}
}

func TestBuildIsReproducible(t *testing.T) {
	program(t)
	if !bytes.Equal(agent.content, buildAgent(t)) { // in another folder
		t.Error("two builds of the same sources differ")
	}
}

func TestAgentIsBuiltForARM(t *testing.T) { buildAgent(t, "GOARCH=arm64") }

// assemble makes the image's root file system from this machine's iptables, with the Dockerfile's command.
func assemble(t *testing.T) string {
	t.Helper()
	if _, err := os.Stat("/usr/sbin/xtables-nft-multi"); err != nil || os.Geteuid() != 0 {
		cannot := t.Skipf
		if os.Getenv(requireVariable) == "1" {
			cannot = t.Fatalf
		}
		cannot("SKIPPED, the image's files were not tested: that takes root and Debian's package iptables")
	}
	dir := t.TempDir()
	collect := exec.Command("sh", "-c", command(t, "ROOTFS"))
	collect.Env = append(os.Environ(), "ROOTFS="+dir)
	if out, err := collect.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	bin := filepath.Join(dir, "usr/local/bin")
	if err := os.MkdirAll(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(program(t), filepath.Join(bin, "kube-ipvs")); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestImageHasWhatItStarts runs everything that the agent starts, with nothing around it but the image's files.
func TestImageHasWhatItStarts(t *testing.T) {
	dir := assemble(t)
	run := func(stdin string, args ...string) (string, error) {
		// In a network namespace of its own, where rules harm nobody.
		c := exec.Command("unshare", append([]string{"--net", "--", "chroot", dir}, args...)...)
		c.Env = []string{"PATH=/usr/local/bin:/usr/sbin"}
		c.Stdin = strings.NewReader(stdin)
		out, err := c.CombinedOutput()
		return string(out), err
	}
	if out, err := run("", "kube-ipvs", "version"); err != nil {
		t.Errorf("kube-ipvs version: %v\n%s", err, out)
	}
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, variant := range []string{"nft", "legacy"} {
			for _, suffix := range []string{"", "-save", "-restore"} {
				name := family + "-" + variant + suffix
				if out, err := run("", name, "--version"); err != nil || !strings.Contains(out, "v1.8") {
					t.Errorf("%s --version: %v\n%s", name, err, out)
				}
			}
		}
		// Loads the extensions that the agent's rules use. --test changes nothing.
		rules := "*nat\n:KUBE-X - [0:0]\n-A KUBE-X -m comment --comment x -m conntrack --ctstate NEW -m mark --mark 0x4000/0x4000 -j MASQUERADE --random-fully\nCOMMIT\n"
		if out, err := run(rules, family+"-nft-restore", "--test", "--noflush"); err != nil {
			t.Errorf("%s-nft-restore: %v\n%s", family, err, out)
		}
	}
	for _, absent := range []string{"bin/sh", "usr/bin/sh", "usr/bin/apt-get", "usr/bin/dpkg"} {
		if _, err := os.Stat(filepath.Join(dir, absent)); err == nil {
			t.Errorf("the image has %s", absent)
		}
	}
	for _, licence := range []string{"iptables", "libc6", "libxtables12"} {
		if _, err := os.Stat(filepath.Join(dir, "usr/share/doc", licence, "copyright")); err != nil {
			t.Errorf("the licence of %s is missing: %v", licence, err)
		}
	}
}
