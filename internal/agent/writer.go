package agent

import (
	"github.com/kube-ipvs/kube-ipvs/internal/agent/schedule"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// writer applies plans.
type writer struct {
	cfg        *Config
	source     Source
	kernel     Kernel
	schedule   *schedule.Schedule
	background *background
	// writingRules are the families whose rules are being written; lateRules are unreported failures of such writes.
	writingRules map[inet.Family]bool
	lateRules    []Result
	// waited is the number of times that each Service's part of a plan had to wait for the next sync.
	waited map[model.ServiceID]int
	// partSize is maxPart, except in tests.
	partSize int
	// alone is true outside the loop. In that case, the writer waits for rules, and stops after a phase with a failure.
	alone bool
}

func newWriter(cfg *Config, source Source, k Kernel, s *schedule.Schedule, b *background) *writer {
	return &writer{cfg: cfg, source: source, kernel: k, schedule: s, background: b, writingRules: map[inet.Family]bool{}, partSize: maxPart}
}

// maxPart is the number of operations in a part. A part takes a fraction of a second, and its fixed costs are small in comparison.
const maxPart = 4096
