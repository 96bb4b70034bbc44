package guides

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// otherNodes lists the pages whose commands do not run on node-1, the agent's node.
var otherNodes = map[string]string{"docs/quick-start.md": "node-2"}

func TestPages(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIPPED with -short: no page was tested; use make e2e PKG=./e2e/stories/guides")
	}
	s := newStage(t)
	for _, page := range pages(t) {
		name := "node-1"
		if other, ok := otherNodes[page.Name]; ok {
			name = other
		}
		r := &reader{stage: s, node: s.nodes[name], dir: t.TempDir()}
		for _, b := range page.Blocks {
			if b.Kind != "console" || b.NotRun != "" {
				continue
			}
			t.Run(strings.TrimPrefix(b.String(), "docs/"), func(t *testing.T) { r.follow(t, b) })
		}
		r.stop(t)
	}
}

type reader struct {
	*stage
	node    *node
	dir     string
	started []*cluster.Process
}

func (r *reader) follow(t *testing.T, b Block) {
	commands, err := b.Commands()
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range b.Before {
		r.prepare(t, line)
	}
	for i, c := range commands {
		exits := 0
		if i == len(commands)-1 {
			exits = b.Exits
		}
		if err := r.obey(c, exits); err != nil {
			t.Errorf("$ %s\n%v", c.Text, err)
		}
	}
	for _, line := range b.After {
		r.prepare(t, line)
	}
}

func (r *reader) prepare(t *testing.T, line string) {
	t.Helper()
	if line == "stop" {
		r.stop(t)
		return
	}
	if out, err := r.node.RunCommand(r.node.command(line, r.dir)); err != nil {
		t.Fatalf("%s: %v\n%s", line, err, out)
	}
}

// obey repeats a read-only command until its output matches the page, because agents need time to sync.
func (r *reader) obey(c Command, exits int) error {
	if strings.HasPrefix(c.Text, "kube-ipvs run ") {
		return r.runs(c)
	}
	if !looks(c.Text) {
		return r.once(c, exits)
	}
	return cluster.Poll(patience, func() error { return r.once(c, exits) })
}

func looks(line string) bool {
	words := append(strings.Fields(line), "", "")
	return words[0] == "curl" || words[0] == "ipvsadm" || words[0] == "kube-ipvs" && words[1] != "cleanup"
}

func (r *reader) once(c Command, exits int) error {
	var out string
	var err error
	if url, ok := strings.CutPrefix(c.Text, "curl "); ok {
		out, err = get(r.node.Host, url)
	} else {
		out, err = r.node.RunCommand(r.node.command(c.Text, r.dir))
	}
	if status := statusOf(err); status != exits {
		return fmt.Errorf("exit status %d, want %d: %v", status, exits, err) //nolint:errorlint // may be nil
	}
	return Match(c.Shown, out)
}

func (r *reader) runs(c Command) error {
	p, err := r.node.start(c.Text, r.dir)
	if err != nil {
		return err
	}
	r.started = append(r.started, p)
	return cluster.Poll(patience, func() error { return Match(c.Shown, p.Log()) })
}

func (r *reader) stop(t *testing.T) {
	t.Helper()
	for _, p := range r.started {
		if err := p.Stop(patience); err != nil {
			t.Error(errors.Join(err, errors.New(lastLines(p.Log()))))
		}
	}
	r.started = nil
}
