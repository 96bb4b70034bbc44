//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/localports"
)

// TestLastSteps: the document and the text contain the steps that no plan contains, and why they failed.
func TestLastSteps(t *testing.T) {
	record := filepath.Join(t.TempDir(), "reserved-ports")
	const link, ports = "remove kube-ipvs0 of an agent in user space, and its routes", "remove the agent's node ports 30080 from the sysctl net.ipv4.ip_local_reserved_ports"
	both := []string{link, ports}
	refused := errors.New("read-only file system")
	for name, c := range map[string]struct {
		args                      []string
		err                       error
		toRemove, removed, failed []string
	}{
		"dry run": {args: []string{"--dry-run"}, toRemove: both},
		"run":     {removed: both},
		"failure": {err: refused, failed: both},
	} {
		t.Run(name, func(t *testing.T) {
			set := func() *stage {
				s := newMachine(t)
				s.leftLink = true
				reserved := kernel.Ports{{First: 30080, Last: 30080}}
				s.SourcePorts = localports.Host{
					Record:   func() (string, error) { return record, os.WriteFile(record, []byte("30080\n"), 0o600) },
					Reserved: func() (kernel.Ports, error) { return reserved, nil },
					Reserve: func(ports kernel.Ports) error {
						if c.err == nil {
							reserved = ports
						}
						return c.err
					},
				}
				if c.err != nil {
					s.Link.Remove = func() error { return c.err }
				}
				return s
			}
			args := withFlags(append([]string{"cleanup"}, c.args...)...)
			out, stderr, status := set().call(t, append(slices.Clone(args), "-o", "json")...)
			var document inspect.Cleanup
			if err := json.Unmarshal([]byte(out), &document); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			var failed []string
			for _, f := range document.Failed {
				if failed = append(failed, f.Operation); f.Error != refused.Error() {
					t.Errorf("%s: %s", f.Operation, f.Error)
				}
			}
			if got := [][]string{document.ToRemove, document.Removed, failed}; !cmp.Equal(got, [][]string{c.toRemove, c.removed, c.failed}, cmpopts.EquateEmpty()) {
				t.Errorf("%s%s", out, stderr)
			}
			if (status != 0) != (c.err != nil) || strings.Contains(stderr, "read-only") != (c.err != nil) {
				t.Errorf("status %d, %s", status, stderr)
			}
			if out, stderr, _ := set().call(t, args...); out != "" || strings.Count(stderr, "kube-ipvs0 of an agent")+strings.Count(stderr, "ports 30080") != 2-len(c.failed) {
				t.Errorf("as text: %q, %q", out, stderr)
			}
		})
	}
}
