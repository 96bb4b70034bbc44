package main

import (
	"os"
	"strconv"

	"go.uber.org/zap"
)

// protectFromOOM tells the kernel how soon to end this process when memory runs out. A node whose agent is ended goes on serving,
// but stops following the cluster.
func protectFromOOM(adjustment int, log *zap.Logger) {
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(adjustment)), 0o644); err != nil {
		log.Warn("cannot set this process's oom_score_adj: the kernel may end it early when memory runs out",
			zap.Int("wanted", adjustment), zap.Error(err))
	}
}
