package kubeproxy

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

func cleanup(t *testing.T, w *world) (ours, theirs string) {
	t.Helper()
	for _, s := range w.sides() {
		if err := s.process.Stop(patience); err != nil {
			t.Logf("%s: %v", s.name, err) // kube-proxy never exits with status 0
		}
		if found, err := s.hasForeignServer(); err == nil && !found {
			s.addForeignServer(t)
		}
	}
	commands := map[*side][]string{
		w.ours:   {cluster.AgentBinary(t), "cleanup", "--conntrack-max-per-core", "0"},
		w.theirs: {w.program, "--cleanup"},
	}
	return w.both(func(s *side) string {
		failed := ""
		if _, err := s.node.RunCommand(cluster.Command{Args: commands[s], Within: patience}); err != nil {
			t.Logf("%s: %v", s.name, err)
			failed = "it fails; "
		}
		left, err := s.left()
		if err != nil {
			return err.Error()
		}
		found, err := s.hasForeignServer()
		if err != nil {
			return err.Error()
		}
		return fmt.Sprintf("%s%s; the other virtual server %s", failed, left, map[bool]string{true: "stays", false: "is deleted"}[found])
	})
}

func (s *side) left() (string, error) {
	var all []string
	for _, kind := range []struct{ name, list string }{
		{"IPv4 sets", "ipset list -n | grep -E '^KUBE-|^KIPVS-4-' | grep -v ^KUBE-6-"},
		{"IPv6 sets", "ipset list -n | grep -E '^KUBE-6-|^KIPVS-6-'"},
		{"chains", "{ iptables-save; ip6tables-save; } | grep -E 'KUBE-|KIPVS-'"},
		{"kube-ipvs0", "ip -o link show dev kube-ipvs0"},
		{"virtual servers", "ipvsadm -Sn | grep -v " + foreignAt},
	} {
		out, err := s.node.Run("sh", "-c", kind.list+"; true")
		if err != nil {
			return "", err
		}
		if out != "" {
			all = append(all, kind.name)
		}
	}
	if len(all) == 0 {
		return "nothing of its own is left", nil
	}
	return strings.Join(all, ", ") + " are left", nil
}
