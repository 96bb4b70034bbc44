package chart

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// instruction is one of the Dockerfile, its continued lines joined.
type instruction struct {
	stage    int // that it belongs to, from 1; 0 for what stands before the first
	word     string
	argument string
}

func dockerfile(t *testing.T) []instruction {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "Dockerfile"))
	if err != nil {
		t.Fatal(err)
	}
	lines := regexp.MustCompile(`(?m)^#.*\n`).ReplaceAllString(string(text), "")
	lines = strings.ReplaceAll(lines, "\\\n", "")
	var all []instruction
	stage := 0
	for line := range strings.Lines(lines) {
		word, argument, _ := strings.Cut(strings.TrimSpace(line), " ")
		if word == "" {
			continue
		}
		if word == "FROM" {
			stage++
		}
		all = append(all, instruction{stage, word, strings.TrimSpace(argument)})
	}
	return all
}

// command finds the RUN that contains a text.
func command(t *testing.T, part string) string {
	t.Helper()
	for _, i := range dockerfile(t) {
		if i.word == "RUN" && strings.Contains(i.argument, part) {
			return i.argument
		}
	}
	t.Fatalf("no RUN of the Dockerfile has %q", part)
	return ""
}

// copied lists what the Dockerfile takes from the checkout.
func copied(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, i := range dockerfile(t) {
		if words := strings.Fields(i.argument); i.word == "COPY" && !strings.HasPrefix(words[0], "--from=") {
			all = append(all, words[:len(words)-1]...)
		}
	}
	return all
}

// TestBuilderGetsWhatItCopies: the files exist, and .dockerignore lets them and nothing else through.
func TestBuilderGetsWhatItCopies(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, ".dockerignore"))
	if err != nil {
		t.Fatal(err)
	}
	let := regexp.MustCompile(`(?m)^!(.*)$`).FindAllStringSubmatch(string(text), -1)
	if !strings.Contains(string(text), "\n*\n") {
		t.Error(".dockerignore does not begin with *: builders would be sent everything, .cache too")
	}
	sources := copied(t)
	for _, source := range sources {
		if _, err := os.Stat(filepath.Join(root, source)); err != nil {
			t.Errorf("COPY %s: %v", source, err)
		}
		if !slices.ContainsFunc(let, func(m []string) bool { return m[1] == source }) {
			t.Errorf("COPY %s: .dockerignore keeps it from the builder", source)
		}
	}
	for _, m := range let {
		if !slices.Contains(sources, m[1]) {
			t.Errorf(".dockerignore lets %s through, which nothing copies", m[1])
		}
	}
}

// TestDockerfileHabits: what a linter would say.
func TestDockerfileHabits(t *testing.T) {
	all := dockerfile(t)
	last := all[len(all)-1].stage
	arguments := map[string]string{}
	for _, i := range all {
		switch i.word {
		case "ARG":
			name, value, _ := strings.Cut(i.argument, "=")
			arguments[name] = value
		case "FROM":
			checkBase(t, i, i.stage == last, arguments)
		case "ADD":
			t.Errorf("ADD %s: COPY does what it says", i.argument)
		case "RUN":
			if i.stage == last {
				t.Errorf("RUN %s: the last stage has no shell", i.argument)
			}
			if strings.Contains(i.argument, "apt-get install") &&
				!(strings.Contains(i.argument, "--no-install-recommends") && strings.Contains(i.argument, "apt-get update") && strings.Contains(i.argument, "rm -rf /var/lib/apt/lists/")) {
				t.Errorf("RUN %s: update, install without recommendations, and remove the lists in one step", i.argument)
			}
		case "ENTRYPOINT", "CMD":
			if !strings.HasPrefix(i.argument, "[") {
				t.Errorf("%s %s: there is no shell to start it; want [...]", i.word, i.argument)
			}
		}
	}
}

// checkBase wants bases that whoever builds may choose, and that come from no particular registry.
func checkBase(t *testing.T, i instruction, last bool, arguments map[string]string) {
	t.Helper()
	base := strings.Fields(i.argument)[0]
	if last {
		if base != "scratch" {
			t.Errorf("FROM %s: the last stage begins with more than its files", i.argument)
		}
		return
	}
	value, isArgument := arguments[strings.Trim(base, "${}")]
	if !isArgument {
		t.Errorf("FROM %s: want an ARG, so that a build can take another base", i.argument)
	}
	if host, _, has := strings.Cut(value, "/"); has && strings.ContainsAny(host, ".:") {
		t.Errorf("base %s names a registry", value)
	}
	if !strings.Contains(value, ":") || strings.HasSuffix(value, ":latest") {
		t.Errorf("base %s: want a tag other than latest", value)
	}
}
