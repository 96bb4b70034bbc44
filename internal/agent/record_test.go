package agent

import (
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/kube-ipvs/kube-ipvs/internal/agent/contest"
	"github.com/kube-ipvs/kube-ipvs/internal/agent/journal"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

func randomIDs(t *rapid.T, label string) (ids []model.ServiceID) {
	for _, name := range rapid.SliceOfN(rapid.StringN(1, 300, -1), 0, 200).Draw(t, label) {
		ids = append(ids, model.ServiceID{Namespace: "ns", Name: name})
	}
	slices.SortFunc(ids, model.ServiceID.Compare)
	return slices.Compact(ids)
}

func randomReport(t *rapid.T) *Report {
	texts := rapid.SliceOfN(rapid.StringN(0, 2000, -1), 0, 20)
	r := &Report{Kind: view.SyncRepair, Compiled: randomIDs(t, "compiled"), Written: randomIDs(t, "written"), Drift: rapid.IntRange(0, 9).Draw(t, "drift")}
	for i, text := range texts.Draw(t, "texts") {
		op := kernel.Op{Verb: kernel.Create, Object: kernel.BoundAddress{Addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(i)})}}
		result := Result{Op: op, Skipped: rapid.Bool().Draw(t, "skipped")}
		if rapid.Bool().Draw(t, "fails") {
			result.Err = errors.New(text)
		}
		r.Results = append(r.Results, result)
		r.Drifted = append(r.Drifted, contest.Finding{What: text, Count: 1})
		p := model.Problem{Reason: text}
		r.ProblemChanges = append(r.ProblemChanges, ProblemChange{Added: []model.Problem{p, p}, Resolved: []model.Problem{p}})
		r.Causes = append(r.Causes, view.Cause{Reason: view.ForServices, Objects: some([]string{text, text}, maxCauseObjects, asItIs)})
	}
	return r
}

func TestEntriesAreBoundedAndIndependent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ring, r := journal.New(), randomReport(t)
		record(ring, r, kernel.IPVSWithIPTables)
		if len(ring.History().Entries) == 0 {
			return
		}
		e := ring.History().Entries[0]
		before, err := json.Marshal(e)
		if err != nil {
			t.Fatal(err)
		}
		if size := journal.Size(e); size > 256<<10 {
			t.Fatalf("an entry of %d bytes", size)
		}
		if strings.Contains(string(before), "null") {
			t.Fatalf("a list is null: %s", before)
		}
		for i := range r.Results {
			r.Results[i], r.Drifted[i] = Result{}, contest.Finding{}
			clear(r.ProblemChanges[i].Added)
			clear(r.Causes[i].Objects.Items)
		}
		clear(r.ProblemChanges)
		clear(r.Causes)
		clear(r.Compiled)
		clear(r.Written)
		if after, _ := json.Marshal(e); string(after) != string(before) {
			t.Fatalf("the entry shares memory with the report:\n%s\n%s", before, after)
		}
	})
}

func TestKindsHaveNames(t *testing.T) {
	for kind := kernel.KindSysctl; kind <= kernel.KindTimeouts; kind++ {
		for _, mode := range []kernel.Mode{kernel.IPVSWithIPTables, kernel.IPVSWithNFTables, kernel.NFTablesOnly} {
			if kindNames[kind] == "" || planeOf(kind, mode) == "" {
				t.Errorf("kind %d: %q in %q", kind, kindNames[kind], planeOf(kind, mode))
			}
		}
	}
}
