//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/kube-ipvs/kube-ipvs/internal/doctor"
	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/machine"
)

// TestTopCommand: without a terminal, top prints tables or one document. If it cannot read the counters, it explains why.
func TestTopCommand(t *testing.T) {
	s := newStage(t)
	read := uint64(0)
	s.Counts = func(context.Context, string) (inspect.Counts, error) {
		read++
		counts := inspect.Counts{}
		for key := range s.Kernel(t.Context(), machine.Look{}).Servers {
			counts[key] = kernel.Traffic{Counters: kernel.Counters{Connections: 1000 * read}}
		}
		return counts, nil
	}
	out, stderr, status := s.inspect(t, "top", "-b", "--iterations", "2", "--interval", "100ms")
	if status != 0 || stderr != "" || strings.Count(out, "CONN/S") != 2 || strings.Count(out, "10.96.0.10:80/tcp") != 2 {
		t.Errorf("status %d, %q\n%s", status, stderr, out)
	}
	out, _, status = s.inspect(t, "top", "shop/web", "--interval", "100ms", "-o", "json")
	var list inspect.TopList
	if err := json.Unmarshal([]byte(out), &list); err != nil || status != 0 || list.Seconds <= 0 || len(list.Items) == 0 || list.Items[0].Traffic.Connections <= 0 {
		t.Errorf("status %d, %v\n%s", status, err, out)
	}
	topOfStoppedCounters(t, s)
	topFails(t, s)
}

func topOfStoppedCounters(t *testing.T, s *stage) {
	t.Helper()
	host := s.Host(t.Context())
	defer func() { s.Host = func(context.Context) doctor.Host { return host } }()
	s.Host = func(context.Context) doctor.Host { return fakeHost{"/proc/sys/net/ipv4/vs/run_estimation": "0\n"} }
	const why = "the counters are stopped"
	if _, stderr, status := s.inspect(t, "top", "-b", "--iterations", "2", "--interval", "100ms"); status != 0 || strings.Count(stderr, why) != 1 {
		t.Errorf("status %d, %q", status, stderr)
	}
	out, _, _ := s.inspect(t, "top", "--interval", "100ms", "-o", "json")
	var list inspect.TopList
	if err := json.Unmarshal([]byte(out), &list); err != nil || len(list.Unknown) != 1 || !strings.Contains(list.Unknown[0], why) {
		t.Errorf("%v, unknown: %q", err, list.Unknown)
	}
	s.LastDataPlane = func() string { return kernel.DataPlaneUserspace }
	if text := s.StoppedCounters(t.Context()); text != "" {
		t.Errorf("in user space, where the agent counts: %s", text)
	}
	s.LastDataPlane = func() string { return kernel.DataPlaneAuto }
}

func topFails(t *testing.T, s *stage) {
	t.Helper()
	for line, want := range map[string]string{
		"top --interval 1ms": "at least 100ms", "top --iterations -1": "0 or more", "top --iterations 1 --interval 100ms --sort-by age": "conn/s, pkt/s",
	} {
		if out, stderr, status := s.inspect(t, strings.Fields(line)...); status == 0 || !strings.Contains(stderr, want) {
			t.Errorf("%s: status %d, %q, want %q\n%s", line, status, stderr, want, out)
		}
	}
	again := topCommand{machine: s.Machine, cmd: &cobra.Command{}, args: []string{"no name"}}
	again.cmd.SetContext(t.Context())
	if _, err := again.next(); err == nil {
		t.Error("no error although no Services were read")
	}
	again.asked = again.asked.Add(time.Nanosecond) // they were read long ago
	if list, err := again.next(); err != nil || len(list.Unknown) != 1 || !strings.Contains(list.Unknown[0], "no name") {
		t.Errorf("%v, unknown: %q", err, list.Unknown)
	}
	s.Counts = func(context.Context, string) (inspect.Counts, error) {
		return nil, errors.New("nftables balances connections on this node")
	}
	if _, stderr, status := s.inspect(t, "top", "-b"); status != 1 || !strings.Contains(stderr, "nftables balances") {
		t.Errorf("status %d, %q", status, stderr)
	}
}
