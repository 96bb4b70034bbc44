package main

import (
	"os"
	"strconv"
	"strings"

	"go.uber.org/zap"
)

const oomScoreFile = "/proc/self/oom_score_adj"

// protectFromOOM tells the kernel how soon to end this process when memory runs out. A node whose agent is ended goes on serving,
// but stops following the cluster. A container may not lower what the kubelet has set, which is -997 for a node's critical pods:
// good enough.
func protectFromOOM(adjustment int, log *zap.Logger) {
	err := os.WriteFile(oomScoreFile, []byte(strconv.Itoa(adjustment)), 0o644)
	if err == nil {
		return
	}
	have, _ := os.ReadFile(oomScoreFile)
	if score, unread := strconv.Atoi(strings.TrimSpace(string(have))); unread == nil && score < 0 {
		log.Debug("oom_score_adj stays as whoever started this process has set it", zap.Int("wanted", adjustment), zap.Int("have", score))
		return
	}
	log.Warn("cannot set this process's oom_score_adj: the kernel may end it early when memory runs out",
		zap.Int("wanted", adjustment), zap.Error(err))
}
