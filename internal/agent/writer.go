package agent

import (
	"github.com/kube-ipvs/kube-ipvs/internal/agent/schedule"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

type writer struct {
	cfg          *Config
	source       Source
	kernel       Kernel
	schedule     *schedule.Schedule
	background   *background
	writingRules map[inet.Family]bool
	// lateRules contains the failures of earlier writes that no report has shown yet.
	lateRules []Result
	// wroteRules is true if a write of rules has succeeded. They may have been missing before.
	wroteRules bool
	// waited counts how often each Service's changes were left for the next sync.
	waited map[model.ServiceID]int
	// partSize is maxPart, except in tests.
	partSize int
	// alone is true outside the loop. In that case, the writer waits for rules and stops after a phase with a
	// failure.
	alone bool
}

func newWriter(cfg *Config, source Source, k Kernel, s *schedule.Schedule, b *background) *writer {
	return &writer{cfg: cfg, source: source, kernel: k, schedule: s, background: b, writingRules: map[inet.Family]bool{}, partSize: maxPart}
}

const maxPart = 4096
