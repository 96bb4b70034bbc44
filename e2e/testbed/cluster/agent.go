package cluster

import (
	"os"
	"path/filepath"
)

// AgentBinary is the program under test.
func AgentBinary(t T) string {
	t.Helper()
	path := os.Getenv("KUBE_IPVS_AGENT")
	if path == "" {
		t.Fatalf("KUBE_IPVS_AGENT is not set: it must name the kube-ipvs binary to test; `make e2e` builds and names it")
	}
	return path
}

// WriteManifests atomically creates or changes a file in the manifest folder of an agent.
func WriteManifests(dir, name, manifests string) error {
	hidden := filepath.Join(dir, "."+name)
	if err := os.WriteFile(hidden, []byte(manifests), 0o644); err != nil {
		return err
	}
	return os.Rename(hidden, filepath.Join(dir, name+".yaml"))
}
