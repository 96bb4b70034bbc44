package agent_test

import (
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/kerneltest"
)

// A node may change to another release and back. The files in testdata contain the kernel state that each release leaves.
// The agent adopts each state and keeps its virtual servers. If the newest release wrote the state, the agent writes
// nothing, so a rollback to that release also writes nothing.
//
// If the test fails, it prints the new state. After an intended change, replace the file of the newest release if that
// release is not published yet. Otherwise, add a file for the next release.
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
