package inspect

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/bundle"
)

// TestBundle makes an archive on a node with an agent. Only the parts without a source there may fail.
func TestBundle(t *testing.T) {
	s := newStage(t)
	path := filepath.Join(s.dir, "bundle.tar.gz")
	if out, err := s.node.Run(s.binary, "bundle", path, "--status-socket", s.socket); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	read := func(file string) string { return s.node.MustRun(t, "tar", "-xzOf", path, "kube-ipvs-bundle/"+file) }
	var index bundle.Manifest
	if err := json.Unmarshal([]byte(read("manifest.json")), &index); err != nil {
		t.Fatal(err)
	}
	for _, f := range index.Files {
		if f.Error != "" && f.File != "node/agent.log" && f.File != "node/kernel.log" && !strings.HasPrefix(f.File, "node/doctor") {
			t.Errorf("%s (%s): %s", f.File, f.Command, f.Error)
		}
	}
	for file, want := range map[string]string{
		"agent/services.txt": plainIP, "agent/history.json": "default/plain", "agent/metrics.txt": "kube_ipvs_", "kernel/ipvsadm-Ln.txt": plainIP + ":80",
		"kernel/ipvsadm-Sn.txt": "-A -t " + plainIP, "kernel/sets.txt": plainIP, "kernel/rules.txt": "KUBE-SERVICES", "node/addresses.txt": "kube-ipvs0 " + plainIP,
		"node/sysctls.txt": "net/ipv4/ip_forward = 1",
	} {
		if text := read(file); !strings.Contains(text, want) {
			t.Errorf("%s lacks %q:\n%s", file, want, text)
		}
	}
}
