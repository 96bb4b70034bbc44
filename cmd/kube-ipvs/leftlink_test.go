//go:build linux

package main

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/daemon"
	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/machine"
	"github.com/kube-ipvs/kube-ipvs/internal/preflight"
)

// TestCleanupOfUserspace: cleanup removes the kube-ipvs0 that a killed agent in user space has left.
func TestCleanupOfUserspace(t *testing.T) {
	s := newMachine(t)
	s.leftLink = true
	if _, stderr, status := s.call(t, withFlags("cleanup", "--dry-run")...); status != 0 || !s.leftLink || !strings.Contains(stderr, "would remove kube-ipvs0") {
		t.Errorf("dry run: status %d, %s, left %t", status, stderr, s.leftLink)
	}
	if _, stderr, status := s.call(t, withFlags("cleanup")...); status != 0 || s.leftLink || !strings.Contains(stderr, "removed kube-ipvs0") {
		t.Errorf("status %d, %s, left %t", status, stderr, s.leftLink)
	}
}

// TestCleanupWithoutAKernel: on a machine that lacks what the other data planes need, cleanup still removes what an agent in
// user space has left, and reports what it could not examine.
func TestCleanupWithoutAKernel(t *testing.T) {
	s := newMachine(t)
	s.leftLink = true
	s.Open = func(*config.Settings, preflight.Choice, *zap.Logger) (daemon.Kernel, kernel.Ports, error) {
		return nil, kernel.Ports{}, errors.New("no nftables")
	}
	_, stderr, status := s.call(t, withFlags("cleanup")...)
	if status != 1 || s.leftLink || !strings.Contains(stderr, "removed kube-ipvs0") || !strings.Contains(stderr, "no nftables") {
		t.Errorf("status %d, %s, left %t", status, stderr, s.leftLink)
	}
	s.leftLink = true
	s.TryLock = func() (func(), error) { return nil, errors.New("an agent is running") }
	if _, stderr, status := s.call(t, withFlags("cleanup")...); status != 1 || !s.leftLink {
		t.Errorf("beside an agent: status %d, %s, left %t", status, stderr, s.leftLink)
	}
}

// TestPlanBesideUserspace: the kernel has nothing of an agent in user space, so plan does not claim that everything is missing.
func TestPlanBesideUserspace(t *testing.T) {
	s := newMachine(t)
	s.leftLink = true
	out, stderr, status := s.call(t, withFlags("plan", "--manifests", "testdata/inspect")...)
	if status != 1 || out != "" || !strings.Contains(stderr, "`kube-ipvs status`") {
		t.Errorf("status %d, %s\n%s", status, stderr, out)
	}
}

// TestAfterUserspace: if no agent runs, and the last one was in user space, the commands say so, and do not name IPVS' module. If the last one is
// unknown, they name it for the virtual servers of other agents only.
func TestAfterUserspace(t *testing.T) {
	for name, unread := range map[string]error{"no module": errNoIPVS, "IPVS is empty": nil} {
		t.Run(name, func(t *testing.T) {
			s := newMachine(t)
			s.socket = filepath.Join(t.TempDir(), "no-agent.sock")
			s.Kernel = func(context.Context, machine.Look) *explain.Kernel {
				k := &explain.Kernel{State: &kernel.State{}, Unread: map[explain.Part]explain.Unread{}}
				if unread != nil {
					k.Unread[explain.Servers] = machine.Unread(unread)
				}
				return k
			}
			for _, command := range []string{"services", "conns", "top --batch --iterations 1 --interval 100ms", "status"} {
				s.LastDataPlane = func() string { return kernel.DataPlaneUserspace }
				out, stderr, status := s.inspect(t, strings.Fields(command)...)
				if status == 0 || !strings.Contains(out+stderr, "forwarded connections in its process") || strings.Contains(out+stderr, "modprobe ip_vs") {
					t.Errorf("%s: status %d\n%s%s", command, status, out, stderr)
				}
				s.LastDataPlane = func() string { return "" }
				out, stderr, _ = s.inspect(t, strings.Fields(command)...)
				for _, hint := range []string{"that an agent has left", "--data-plane=userspace leaves none"} {
					if command != "status" && unread != nil && !strings.Contains(stderr, hint) {
						t.Errorf("%s: %q is missing\n%s%s", command, hint, out, stderr)
					}
				}
			}
		})
	}
}
