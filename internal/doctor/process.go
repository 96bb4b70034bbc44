package doctor

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
)

// checkNamespace reports that doctor does not see what the agent serves. The other checks would compare the agent's state with objects that are not
// the agent's.
func checkNamespace(f Facts) []finding.Finding {
	return finding.One(finding.Broken, "network namespace", "the agent and doctor run in different network namespaces; doctor cannot check what the agent serves, "+
		"and an agent in the wrong one serves nothing", []string{f.View.Elsewhere(f.Namespace)},
		"if doctor is in the wrong one, run it in the agent's: `kubectl exec` in the agent's pod, or `nsenter --net=/proc/PID/ns/net` with the agent's process ID; "+
			"if the agent is in the wrong one, start it in the node's: a pod needs hostNetwork: true")
}

// readFiles looks for an agent that has used up its file descriptors. It cannot accept connections, so it does not answer.
func (f *Facts) readFiles(h reader) {
	if f.View != nil || f.Holder == 0 {
		return
	}
	const subject = "open files of the agent"
	process := fmt.Sprintf("/proc/%d", f.Holder)
	limits, _ := h.may(process+"/limits", subject) // the process may have exited
	open := len(h.mayList(process+"/fd", subject))
	if most, known := openFilesLimit(limits); known && open >= most {
		f.Files = fmt.Sprintf("process %d has %s, and its limit is %d", f.Holder, number(open, "open file"), most)
	}
}

// openFilesLimit returns the soft limit in /proc/PID/limits.
func openFilesLimit(limits string) (most int, known bool) {
	for line := range strings.Lines(limits) {
		if rest, is := strings.CutPrefix(line, "Max open files"); is && strings.TrimSpace(rest) != "" {
			most, err := strconv.Atoi(strings.Fields(rest)[0])
			return most, err == nil
		}
	}
	return 0, false
}
