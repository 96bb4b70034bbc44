//go:build linux

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/machine"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

func sameInYAML(t *testing.T, inJSON, inYAML string) {
	t.Helper()
	if !json.Valid([]byte(inJSON)) {
		t.Errorf("not JSON: %s", inJSON)
	}
	converted, err := yaml.JSONToYAML([]byte(inJSON))
	if err != nil || string(converted) != inYAML {
		t.Errorf("YAML and JSON differ: %v\n%s\n%s", err, inYAML, converted)
	}
}

func TestInspectionCommands(t *testing.T) {
	s := newStage(t)
	for _, c := range []struct {
		name, line string
		people     []string // text formats
		status     int
	}{
		{"services", "services", []string{asTable, asWide}, 0},
		{"service", "services shop/web", []string{asTable, asWide}, 0},
		{"conns", "conns", []string{asTable, asWide}, 0},
		{"status", "status", []string{asTable}, 0},
		{"history", "history", []string{asTable, asWide, asName}, 0},
		{"explain", "explain 203.0.113.10:80 --from 198.51.100.7", []string{asText}, 0},
		{"explain-all-steps", "explain 203.0.113.10:80 --from 198.51.100.7 -v", []string{asText}, 0},
		{"explain-service", "explain shop/web:http --from 10.244.1.9", []string{asText}, 3},
		{"explain-connection", "explain 203.0.113.10:80 --from 198.51.100.7:40001", []string{asText}, 0},
		{"explain-stops", "explain 203.0.113.10:80 --from 192.0.2.77 --interface eth0", []string{asText}, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			words := strings.Fields(c.line)
			printed := map[string]string{}
			for _, form := range append(c.people, asJSON, asYAML) {
				out, stderr, status := s.inspect(t, append(words, "-o", form)...)
				if status != c.status || stderr != "" {
					t.Errorf("-o %s: status %d, stderr %q", form, status, stderr)
				}
				if printed[form] = out; form != asYAML {
					golden(t, fmt.Sprintf("inspect/%s.%s.golden", c.name, form), out)
				}
			}
			sameInYAML(t, printed[asJSON], printed[asYAML])
			if out, _, _ := s.inspect(t, words...); out != printed[c.people[0]] {
				t.Errorf("the default output differs from -o %s", c.people[0])
			}
		})
	}
}

var errNoIPVS = fmt.Errorf("open IPVS: %w: the module ip_vs is not loaded; run `modprobe ip_vs`", kernel.ErrUnavailable)

// TestWithoutIPVS: if the kernel lacks ip_vs, commands show what they can, and name the command that loads the module.
func TestWithoutIPVS(t *testing.T) {
	for name, cause := range map[string]struct {
		err   error
		wants string
		// explained is the expected exit status of explain: 3 if IPVS is missing, because no packet arrives; 1 without
		// root, because explain cannot read the kernel.
		explained int
	}{
		"no module": {errNoIPVS, "modprobe ip_vs", 3},
		"no root":   {fmt.Errorf("read IPVS: %w", unix.EPERM), "run the command as root", 1},
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t)
			read := s.Kernel
			s.Kernel = func(ctx context.Context, at machine.Look) *explain.Kernel {
				k := read(ctx, at)
				k.Servers = nil
				k.Unread = map[explain.Part]explain.Unread{explain.Servers: machine.Unread(cause.err)}
				return k
			}
			for _, agent := range []bool{true, false} {
				socket := s.socket
				if !agent {
					socket = filepath.Join(t.TempDir(), "no-agent.sock")
				}
				for _, c := range []struct {
					line   string
					status int
					out    string // output with an agent
				}{
					{"services", 0, "10.96.0.10:80"}, {"services shop/web", 0, "10.244.1.5:8080"}, {"status", 0, "node-1"},
					{"explain 10.96.0.10:80", cause.explained, "shop/web"},
				} {
					out, stderr, status := s.call(t, append(strings.Fields(c.line), "--status-socket", socket)...)
					if !agent && strings.HasPrefix(c.line, "services") {
						c.status = 1
					} else if !agent && c.line == "status" {
						c.status = int(statusUnwell)
					}
					if status != c.status || !strings.Contains(out+stderr, cause.wants) || agent && !strings.Contains(out, c.out) {
						t.Errorf("%s, agent: %t: status %d, want %d, %q and %q\n%s%s", c.line, agent, status, c.status, cause.wants, c.out, out, stderr)
					}
					if strings.Contains(out, "Missing") {
						t.Errorf("%s, agent: %t: the command reports unread state as missing\n%s", c.line, agent, out)
					}
				}
			}
		})
	}
}

// TestWithoutAgent: without an agent, commands show the kernel state, and an error explains why they cannot look up a
// Service.
func TestWithoutAgent(t *testing.T) {
	s := newStage(t)
	s.socket = filepath.Join(t.TempDir(), "no-agent.sock")
	for line, want := range map[string]string{"services": "10.96.0.10:80/tcp", "conns": "203.0.113.10:80", "explain 10.96.0.11:53/udp": "10.96.0.11:53"} {
		out, stderr, status := s.inspect(t, strings.Fields(line)...)
		if status != 0 && !strings.HasPrefix(line, "explain") || !strings.Contains(out, want) || !strings.Contains(stderr, "showing only the kernel state") {
			t.Errorf("%s: status %d, want %q\n%s%s", line, status, want, out, stderr)
		}
	}
	if out, stderr, status := s.inspect(t, "status"); status != int(statusUnwell) || !strings.Contains(out, "! agent         no kube-ipvs agent responds") {
		t.Errorf("status: status %d\n%s%s", status, out, stderr)
	}
	if out, _, _ := s.inspect(t, "explain", "10.96.0.10:80"); strings.Contains(out, "kube-ipvs is not active") {
		t.Errorf("explain ignores the sets of a stopped agent:\n%s", out)
	}
	for _, line := range []string{"services shop/web", "conns shop/web", "explain shop/web", "history"} {
		out, stderr, status := s.inspect(t, strings.Fields(line)...)
		if status != 1 || out != "" || !strings.Contains(stderr, "only the agent knows") {
			t.Errorf("%s: status %d, %q, %q", line, status, out, stderr)
		}
	}
}

// TestAgentBesideAnotherProxy: an agent beside another proxy omits some rules. Even if this agent does not respond,
// explain does not report these rules as missing.
func TestAgentBesideAnotherProxy(t *testing.T) {
	s := newStage(t)
	s.socket = filepath.Join(t.TempDir(), "no-agent.sock")
	read := s.Kernel
	s.Kernel = func(ctx context.Context, at machine.Look) *explain.Kernel {
		k := read(ctx, at)
		for _, r := range compile.Base(compile.Config{Host: compile.Host{Families: inet.Families}, Settings: compile.Settings{SideBySide: true}}).Rulesets {
			k.State.Rules[r.Family] = r.View()
		}
		return k
	}
	if out, _, _ := s.inspect(t, "explain", "10.96.0.10:80"); strings.Contains(out, "is missing") {
		t.Error(out)
	}
}

func TestDocumentHeaders(t *testing.T) {
	s := newStage(t)
	look := "--status-socket=" + s.socket
	for kind, args := range map[string][]string{
		"ServiceList": {"services", look}, "ConnectionList": {"conns", look}, "Status": {"status", look}, "HistoryList": {"history", look},
		"ExplanationList": {"explain", "10.96.0.10:80", look}, "Version": {"version"}, "ConfigurationVerdict": {"config", "validate"},
		"FindingList": withFlags("preflight"), "Diagnosis": withFlags("doctor"), "Cleanup": withFlags("cleanup", "--dry-run"),
		"WantedState": withFlags("plan", "-f", "testdata/inspect"), "Plan": withFlags("plan", "--manifests", "testdata/inspect"),
	} {
		out, stderr, _ := s.call(t, append(args, "-o", "json")...)
		var document view.Header
		if err := json.Unmarshal([]byte(out), &document); err != nil || document != view.HeaderOf(kind) {
			t.Errorf("%v: %v, %+v, want %+v\n%s", args, err, document, view.HeaderOf(kind), stderr)
		}
	}
}

// TestSocketWithoutRoot: if the user may not open the socket, the command prints a note and the kernel state.
func TestSocketWithoutRoot(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root can open every socket; run this test as another user")
	}
	s := newStage(t)
	if err := os.Chmod(s.socket, 0); err != nil {
		t.Fatal(err)
	}
	if out, stderr, status := s.inspect(t, "services"); status != 0 || !strings.Contains(stderr, "requires the capability NET_ADMIN") || !strings.Contains(out, "10.96.0.10:80") {
		t.Errorf("status %d\n%s%s", status, out, stderr)
	}
}

// TestListings: services and conns accept the flags of kubectl get.
func TestListings(t *testing.T) {
	s := newStage(t)
	for line, want := range map[string]struct {
		status   int
		has, not string
	}{
		"services -n shop":                       {0, "shop", "default "},
		"services -n nowhere --no-headers":       {0, "", "NAMESPACE"},
		"services web -n shop":                   {0, "Service shop/web", ""},
		"services shop/web -n shop":              {0, "Service shop/web", ""},
		"services -A --no-headers":               {0, "shop", "NAMESPACE"},
		"services -o name":                       {0, "shop/web\n", "NAMESPACE"},
		"services --sort-by active":              {0, "shop", ""},
		"conns -n shop --sort-by client -o wide": {0, "NODE", ""},
		"conns -n nowhere --no-headers":          {0, "", "shop"},
		"services shop/web -n other":             {2, "", ""},
		"services web":                           {2, "", ""},
		"services -n shop -A":                    {2, "", ""},
		"services --sort-by age":                 {1, "", ""},
		"history --repairs":                      {0, "4 times until 2026-03-01T11:59:59.000Z: repaired: virtual server 203.0.113.10:80/TCP is missing", "start"},
		"history --failed --no-headers":          {0, "", "KIND"},
		"history --since 10s --no-headers":       {0, "repair", "full"},
		"history --limit 1":                      {0, "repair", "full"},
		"history --service shop/web -o name":     {0, "shop/web", "TIME"},
		"history --service shop/none":            {0, "TIME", "repair"},
	} {
		out, stderr, status := s.inspect(t, strings.Fields(line)...)
		if status != want.status || !strings.Contains(out, want.has) || want.not != "" && strings.Contains(out, want.not) || (status != 0) != (stderr != "") {
			t.Errorf("%s: status %d, %s\n%s", line, status, stderr, out)
		}
	}
}
