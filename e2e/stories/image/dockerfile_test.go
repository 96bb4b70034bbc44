package image

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const checkout = "../../.."

func recipe(t *testing.T) Recipe {
	t.Helper()
	r, err := Read(checkout)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// .dockerignore must exclude all files that the Dockerfile does not copy.
func TestBuilderGetsWhatItCopies(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(checkout, ".dockerignore"))
	if err != nil {
		t.Fatal(err)
	}
	let := regexp.MustCompile(`(?m)^!(.*)$`).FindAllStringSubmatch(string(text), -1)
	if !strings.Contains(string(text), "\n*\n") {
		t.Error(".dockerignore must begin with *, or the build context includes everything, even .cache")
	}
	sources := recipe(t).copied()
	for _, source := range sources {
		if _, err := os.Stat(filepath.Join(checkout, source)); err != nil {
			t.Errorf("COPY %s: %v", source, err)
		}
		if !slices.ContainsFunc(let, func(m []string) bool { return m[1] == source }) {
			t.Errorf("COPY %s: excluded by .dockerignore", source)
		}
	}
	for _, m := range let {
		if !slices.Contains(sources, m[1]) {
			t.Errorf(".dockerignore includes %s, but no COPY uses it", m[1])
		}
	}
}

func TestDockerfileHabits(t *testing.T) {
	all := recipe(t).instructions
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
			t.Errorf("ADD %s: use COPY", i.argument)
		case "RUN":
			if i.stage == last {
				t.Errorf("RUN %s: the last stage has no shell", i.argument)
			}
			if strings.Contains(i.argument, "apt-get install") &&
				!(strings.Contains(i.argument, "--no-install-recommends") && strings.Contains(i.argument, "apt-get update") && strings.Contains(i.argument, "rm -rf /var/lib/apt/lists/")) {
				t.Errorf("RUN %s: must update, install without recommendations, and remove the lists in one step", i.argument)
			}
		case "ENTRYPOINT", "CMD":
			if !strings.HasPrefix(i.argument, "[") {
				t.Errorf("%s %s: the image has no shell; use the exec form [...]", i.word, i.argument)
			}
		}
	}
}

// A build must be able to replace each base image, for example with one from another registry.
func checkBase(t *testing.T, i instruction, last bool, arguments map[string]string) {
	t.Helper()
	base := strings.Fields(i.argument)[0]
	if last {
		if base != "scratch" {
			t.Errorf("FROM %s: the last stage must start from scratch", i.argument)
		}
		return
	}
	value, isArgument := arguments[strings.Trim(base, "${}")]
	if !isArgument {
		t.Errorf("FROM %s: must be an ARG, so that a build can replace the base image", i.argument)
	}
	if host, _, has := strings.Cut(value, "/"); has && strings.ContainsAny(host, ".:") {
		t.Errorf("base %s names a registry", value)
	}
	if !strings.Contains(value, ":") || strings.HasSuffix(value, ":latest") {
		t.Errorf("base %s: must have a tag other than latest", value)
	}
}
