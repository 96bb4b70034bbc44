package config

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

var namesPlace = regexp.MustCompile(`^(fuzz(:\d+(: data\[.*\]:\d+)?)?|default): `)

// FuzzLoad: no file makes the loader panic; every error names the file or a line of it; what is right can be printed and is
// then the same.
func FuzzLoad(f *testing.F) {
	for _, file := range []string{"kubeadm-ipvs.yaml", "kube-proxy-full.yaml", "ours.json", "bad-ours.yaml", "bad-kube-proxy.yaml"} {
		content, err := os.ReadFile("testdata/" + file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(content)
	}
	f.Add([]byte(head + "? [a]\n: b\n<<: {ipvs: {}}\nipvs: &a {scheduler: *a}\n"))
	f.Add([]byte(theirHead + "bindAddress: [::]\nfeatureGates: [a]\nlogging: {options: {a: &x {b: *x}}}\n"))
	f.Fuzz(func(t *testing.T, content []byte) { loadAnything(t, content) })
}

// TestDamagedFiles is FuzzLoad with a few edits to good and bad files, in every run of the tests.
func TestDamagedFiles(t *testing.T) {
	var contents []string
	for _, file := range files(t) {
		content, err := readFile(file)
		if err != nil {
			t.Fatal(err)
		}
		contents = append(contents, string(content))
	}
	edit := rapid.SampledFrom([]string{"", "\n", "\n---\n", ":", ": ", "- ", "{", "}", "[", "]", "&a ", "*a", "|", ">", "\"", "'", "#", "!!int ", "<<", "\t", "\x00", "0", "null"})
	rapid.Check(t, func(t *rapid.T) {
		content := rapid.SampledFrom(contents).Draw(t, "file")
		for range rapid.IntRange(1, 6).Draw(t, "edits") {
			from := rapid.IntRange(0, len(content)).Draw(t, "from")
			to := min(len(content), from+rapid.IntRange(0, 20).Draw(t, "length"))
			content = content[:from] + edit.Draw(t, "edit") + content[to:]
		}
		loadAnything(t, []byte(content))
	})
}

// loadAnything loads a file that may be anything, and checks what every file has in common.
func loadAnything(t rapid.TB, content []byte) {
	loaded, err := (&Flags{File: "fuzz"}).load(content)
	if err != nil {
		for line := range strings.SplitSeq(err.Error(), "\n") {
			if !namesPlace.MatchString(line) {
				t.Errorf("the error names no place: %q", line)
			}
		}
		return
	}
	text, err := loaded.YAML()
	if err != nil {
		t.Fatal(err)
	}
	again, err := (&Flags{File: "fuzz"}).load(text)
	if err != nil {
		t.Fatalf("cannot be loaded again: %v\n%s", err, text)
	}
	if !again.equal(loaded) {
		t.Errorf("differs when loaded again:\n%s", text)
	}
}
