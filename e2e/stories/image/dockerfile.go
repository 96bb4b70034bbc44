package image

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Recipe is the Dockerfile of a checkout.
type Recipe struct {
	checkout     string
	instructions []instruction
}

// instruction is a Dockerfile instruction, with continuation lines joined.
type instruction struct {
	stage    int // from 1; 0 before the first FROM
	word     string
	argument string
}

// Read reads the Dockerfile of a checkout.
func Read(checkout string) (Recipe, error) {
	text, err := os.ReadFile(filepath.Join(checkout, "Dockerfile"))
	if err != nil {
		return Recipe{}, err
	}
	lines := regexp.MustCompile(`(?m)^#.*\n`).ReplaceAllString(string(text), "")
	lines = strings.ReplaceAll(lines, "\\\n", "")
	r := Recipe{checkout: checkout}
	stage := 0
	for line := range strings.Lines(lines) {
		word, argument, _ := strings.Cut(strings.TrimSpace(line), " ")
		if word == "" {
			continue
		}
		if word == "FROM" {
			stage++
		}
		r.instructions = append(r.instructions, instruction{stage, word, strings.TrimSpace(argument)})
	}
	return r, nil
}

// last returns the instructions of the last stage, which becomes the image.
func (r Recipe) last() []instruction {
	all := r.instructions
	first := len(all)
	for first > 0 && all[first-1].stage == all[len(all)-1].stage {
		first--
	}
	return all[first:]
}

func (r Recipe) run(part string) (string, error) {
	for _, i := range r.instructions {
		if i.word == "RUN" && strings.Contains(i.argument, part) {
			return i.argument, nil
		}
	}
	return "", fmt.Errorf("no RUN instruction in the Dockerfile contains %q", part)
}

func (r Recipe) copied() []string {
	var all []string
	for _, i := range r.instructions {
		if words := strings.Fields(i.argument); i.word == "COPY" && !strings.HasPrefix(words[0], "--from=") {
			all = append(all, words[:len(words)-1]...)
		}
	}
	return all
}

// Start is the image's entrypoint, default arguments and environment.
type Start struct {
	Entrypoint, Arguments, Environment []string
}

// Start returns the image's entrypoint, arguments and environment.
func (r Recipe) Start() (Start, error) {
	var s Start
	for _, i := range r.last() {
		var err error
		switch i.word {
		case "ENTRYPOINT":
			err = json.Unmarshal([]byte(i.argument), &s.Entrypoint)
		case "CMD":
			err = json.Unmarshal([]byte(i.argument), &s.Arguments)
		case "ENV":
			s.Environment = append(s.Environment, i.argument)
		}
		if err != nil {
			return s, fmt.Errorf("%s %s: %w", i.word, i.argument, err)
		}
	}
	if len(s.Entrypoint) == 0 {
		return s, fmt.Errorf("the Dockerfile has no ENTRYPOINT")
	}
	return s, nil
}

// Variable returns the default of a Dockerfile's ARG.
func (r Recipe) Variable(name string) (string, error) {
	for _, i := range r.instructions {
		if value, ok := strings.CutPrefix(i.argument, name+"="); ok && i.word == "ARG" {
			return value, nil
		}
	}
	return "", fmt.Errorf("the Dockerfile has no ARG %s with a default", name)
}

// Labels returns the image's labels for a version and commit.
func (r Recipe) Labels(version, commit string) map[string]string {
	all := map[string]string{}
	for _, i := range r.last() {
		if i.word != "LABEL" {
			continue
		}
		for _, label := range strings.Fields(i.argument) {
			name, value, _ := strings.Cut(label, "=")
			all[name] = strings.NewReplacer(`"`, "", "${VERSION}", version, "${COMMIT}", commit).Replace(value)
		}
	}
	return all
}
