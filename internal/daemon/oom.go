//go:build linux

package daemon

import (
	"os"
	"strconv"
	"strings"

	"go.uber.org/zap"
)

const oomScoreFile = "/proc/self/oom_score_adj"

// protectFromOOM sets the OOM score adjustment of this process. Without its agent, a node keeps serving, but no longer follows the cluster. A
// container cannot go below the value that the kubelet has set. For critical pods, that is -997, which is low enough.
func protectFromOOM(adjustment int, log *zap.Logger) {
	err := os.WriteFile(oomScoreFile, []byte(strconv.Itoa(adjustment)), 0o644)
	if err == nil {
		return
	}
	have, _ := os.ReadFile(oomScoreFile)
	if score, unread := strconv.Atoi(strings.TrimSpace(string(have))); unread == nil && score < 0 {
		log.Debug("keeping the oom_score_adj that the parent process set", zap.Int("wanted", adjustment), zap.Int("have", score))
		return
	}
	log.Warn("cannot set oom_score_adj: the kernel may kill the agent early when memory runs out",
		zap.Int("wanted", adjustment), zap.Error(err))
}
