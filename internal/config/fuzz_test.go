package config

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

var namesPlace = regexp.MustCompile(`^(fuzz(:\d+(: data\[.*\]:\d+)?)?|default): `)

// FuzzLoad loads arbitrary files. Loading must not panic, every error must name the file or a line in it, and a valid configuration must
// survive printing and reloading.
//
// Each seed is one field from a file in testdata. Larger seeds are slow, because the fuzzer minimizes every interesting input, which takes a minute
// per kilobyte.
func FuzzLoad(f *testing.F) {
	for _, file := range []string{"kube-proxy-full.yaml", "bad-ours.yaml", "bad-kube-proxy.yaml"} {
		content, err := os.ReadFile("testdata/" + file)
		if err != nil {
			f.Fatal(err)
		}
		format := head
		if strings.Contains(string(content), kubeProxyFormat.version) {
			format = kubeProxyHead
		}
		for field := range strings.SplitSeq(strings.ReplaceAll(string(content), "\n ", "\x00 "), "\n") {
			f.Add([]byte(format + strings.ReplaceAll(field, "\x00", "\n") + "\n"))
		}
	}
	f.Add([]byte("apiVersion: v1\nkind: ConfigMap\ndata:\n  a: |\n    " + strings.ReplaceAll(kubeProxyHead, "\n", "\n    ") + "mode: ipvs\n"))
	f.Add([]byte(`{"apiVersion": "config.kube-ipvs.io/v1alpha1", "kind": "Configuration", "ipvs": {"scheduler": "sh"}}`))
	f.Add([]byte(head + "? [a]\n: b\n<<: {ipvs: {}}\nipvs: &a {scheduler: *a}\n"))
	f.Add([]byte(kubeProxyHead + "bindAddress: [::]\nfeatureGates: [a]\nlogging: {options: {a: &x {b: *x}}}\n"))
	f.Fuzz(func(t *testing.T, content []byte) { loadAnything(t, content) })
}

// TestDamagedFiles makes a few random edits to valid and invalid files, and loads them. Unlike FuzzLoad, it is part of
// every test run.
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

func loadAnything(t rapid.TB, content []byte) {
	loaded, err := (&Flags{File: "fuzz"}).load(content)
	if err != nil {
		for line := range strings.SplitSeq(err.Error(), "\n") {
			if !namesPlace.MatchString(line) {
				t.Errorf("the error does not say where the mistake is: %q", line)
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
		t.Fatalf("the printed configuration cannot be loaded: %v\n%s", err, text)
	}
	if !again.equal(loaded) {
		t.Errorf("the printed configuration differs after loading:\n%s", text)
	}
}
