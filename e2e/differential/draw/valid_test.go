package draw

import (
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/controlplane"
)

// TestTheAPIServerTakesThem: a real API server accepts the batches and their changes.
func TestTheAPIServerTakesThem(t *testing.T) {
	if testing.Short() {
		t.Skip("NOT RUN with -short: starts a control plane")
	}
	api := controlplane.Start(t, controlplane.Config{})
	if err := api.Apply(t.Context(), "apiVersion: v1\nkind: Namespace\nmetadata: {name: team-b}\n"); err != nil {
		t.Fatal(err)
	}
	applied := map[string]string{}
	give := func(set Set) {
		t.Helper()
		docs, wanted := []Document{}, map[string]bool{}
		for _, d := range set.Documents() {
			wanted[d.Key] = true
			if !strings.HasPrefix(d.Key, "Node ") { // server-side apply accepts only one address of each type
				docs = append(docs, d)
			}
		}
		var gone []Document
		for key, text := range applied {
			if !wanted[key] {
				gone = append(gone, Document{Key: key, YAML: text})
				delete(applied, key)
			}
		}
		if err := api.Delete(t.Context(), Join(gone)); err != nil {
			t.Fatal(err)
		}
		if err := api.Apply(t.Context(), Join(docs)); err != nil {
			t.Fatal(err)
		}
		for _, d := range docs {
			applied[d.Key] = d.YAML
		}
	}
	for batch := range 2 {
		d := New(testWorld(), 1, batch)
		set := d.Batch(60)
		give(set)
		for range 3 {
			set, _ = d.Change(set)
			give(set)
		}
	}
}
