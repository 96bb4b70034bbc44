//go:build linux

package main

import (
	"errors"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/daemon"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
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
