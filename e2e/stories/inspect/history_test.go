package inspect

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// TestHistory deletes a virtual server: the history has the agent's start, and the repair with its cause.
func TestHistory(t *testing.T) {
	s := newStage(t)
	list := runJSON[inspect.HistoryList](t, s, "history")
	if len(list.Items) == 0 || list.Items[0].Kind != view.SyncFull || list.Items[0].Services.Count != services || list.Items[0].Failed() {
		t.Fatalf("the start: %+v", list)
	}
	s.node.MustRun(t, "ipvsadm", "-D", "-t", plainIP+":80")
	cluster.Eventually(t, patience, "the history has the repair", func() error {
		repairs := runJSON[inspect.HistoryList](t, s, "history", "--repairs", "--service", "default/plain").Items
		if !slices.ContainsFunc(repairs, func(e *view.PastSync) bool {
			return e.Kind == view.SyncRepair && slices.Contains(e.Services.Items, "default/plain") && strings.Contains(strings.Join(e.Drift.Items, "\n"), plainIP)
		}) {
			return fmt.Errorf("repairs: %+v", repairs)
		}
		return nil
	})
	if out := s.node.MustRun(t, s.binary, "history", "--status-socket", s.socket); !strings.Contains(out, "repaired: ipvs: virtual server "+plainIP) {
		t.Errorf("history prints\n%s", out)
	}
}
