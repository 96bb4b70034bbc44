package agent_test

import (
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/kerneltest"
)

// Nodes may run different releases, and a node may change to another release and back. The files in testdata are what
// each release leaves in the kernel, with its names and owner records. This agent adopts all of them and keeps their
// virtual servers. It writes nothing after the newest release, so that release also writes nothing after this agent.
//
// The failing test prints the new state. If the change is intended and the newest release is not published yet, replace its
// file; otherwise, add one for the next release.
func TestAdoptsWhatReleasesLeave(t *testing.T) {
	files, err := filepath.Glob("testdata/kernel-*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for i, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			calmBubble(t, func(w *world) {
				w.fake = kerneltest.MustParseDump(string(text), compile.Chains...)
				w.fake.SetNodeAddresses(w.around.Addresses...)
				w.services = maps.Clone(crashSteps[0])
				w.noServerIsLost()
				w.start()
				w.converged()
				if n := w.fake.TakeCounts().Writes(); n > 0 && i == len(files)-1 {
					w.Errorf("%d writes: %v\nThe kernel is now:\n%s", n, done(w.takeReports()...), w.fake.Dump())
				}
			})
		})
	}
}
