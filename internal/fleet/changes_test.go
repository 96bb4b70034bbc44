package fleet

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
)

const address = `, "address": "10.96.0.20:80"`

func shown(t *testing.T, before, after Report, form inspect.Table) string {
	t.Helper()
	var out strings.Builder
	changes := Compare(before, after)
	if err := changes.Print(&out, form); err != nil {
		t.Fatal(err)
	}
	if form.NoHeaders && changes.Empty() != (out.String() == "") {
		t.Errorf("empty: %t, but printed %q", changes.Empty(), &out)
	}
	return out.String()
}

func TestWatchPrintsChanges(t *testing.T) {
	q := Question{Command: "services"}
	served, outdated := service("ClusterIP", "Served", 2, address), service("ClusterIP", "NoEndpoints", 0, address)
	reports := []Report{
		merge(q, []Answer{answer("node-1", served, 0), answer("node-2", served, 0), answer("node-3", served, 0)}, 0),
		merge(q, []Answer{
			answer("node-1", served, 0), answer("node-2", strings.ReplaceAll(served, `"active": 2`, `"active": 9`), 0), {Node: "node-3", Error: "no answer within 30s"},
		}, 0),
		merge(q, []Answer{answer("node-1", served, 0), answer("node-2", outdated, 0), answer("node-3", served, 0)}, 0),
		merge(q, []Answer{answer("node-1", served, 0), answer("node-2", served, 0), answer("node-3", served, 0)}, 0),
	}
	form := inspect.Table{Widths: &[]int{len(modified)}}
	before := Report{}
	for i, want := range []string{
		`EVENT      NAMESPACE   NAME   PORT   KIND        ADDRESS             SCHEDULER   ENDPOINTS   STATE    ACTIVE   INACTIVE   NODES
ADDED      shop        web    http   ClusterIP   10.96.0.20:80/tcp   rr          2/2         Served   6        3          all 3
3 of 3 nodes responded
`,
		"! node-3: no answer within 30s\n2 of 3 nodes responded\n",
		`MODIFIED   shop        web    http   ClusterIP   10.96.0.20:80/tcp   rr          2/2         Served        4        2          node-1,node-3
ADDED      shop        web    http   ClusterIP   10.96.0.20:80/tcp   rr          0/0         NoEndpoints   2        1          node-2
no longer: node-3: no answer within 30s
! nodes disagree about shop web http ClusterIP 10.96.0.20:80/tcp: rr 0/0 NoEndpoints (node-2); rr 2/2 Served (node-1, node-3)
3 of 3 nodes responded
`,
		`MODIFIED   shop        web    http   ClusterIP   10.96.0.20:80/tcp   rr          2/2         Served        6        3          all 3
DELETED    shop        web    http   ClusterIP   10.96.0.20:80/tcp   rr          0/0         NoEndpoints   2        1          node-2
no longer: nodes disagree about shop web http ClusterIP 10.96.0.20:80/tcp: rr 0/0 NoEndpoints (node-2); rr 2/2 Served (node-1, node-3)
`,
	} {
		got := shown(t, before, reports[i], form)
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("round %d: %s", i, d)
		}
		before, form.NoHeaders = reports[i], true
	}
}

func TestWatchKeepsColumns(t *testing.T) {
	form := inspect.Table{Widths: &[]int{len(modified)}}
	q := Question{Command: "version"}
	first := merge(q, []Answer{answer("node-1", `{"version": "v0.1.0-long"}`, 0)}, 0)
	titles, _, _ := strings.Cut(shown(t, Report{}, first, form), "\n")
	form.NoHeaders = true
	row := shown(t, first, merge(q, []Answer{answer("node-1", `{"version": "v1", "go": "go1"}`, 0)}, 0), form)
	if at := strings.Index(titles, "GO"); !strings.HasPrefix(row, "ADDED ") || strings.Index(row, "go1") != at {
		t.Errorf("the row is not below its titles:\n%s\n%s", titles, row)
	}
}

func TestWatchIgnoresWhatAlwaysChanges(t *testing.T) {
	conn := `{"items": [{"namespace": "shop", "name": "web", "client": "10.0.0.1:4000", "virtual": "10.96.0.20:80", "endpoint": "10.244.1.2:80", "expiresSeconds": 9}]}`
	for command, documents := range map[string][2]string{
		"conns":  {conn, strings.ReplaceAll(conn, "9}", "8}")},
		"doctor": {diagnosis("warning", "", full(91, "9100 of 10000")), diagnosis("warning", "", full(92, "9200 of 10000"))},
	} {
		q := Question{Command: command}
		changes := Compare(merge(q, []Answer{answer("node-1", documents[0], 0)}, 0), merge(q, []Answer{answer("node-1", documents[1], 0)}, 0))
		if !changes.Empty() {
			t.Errorf("%s: %+v", command, changes)
		}
	}
	q := Question{Command: "doctor"}
	before, after := merge(q, []Answer{answer("node-1", documents(drops), 2)}, 0), merge(q, []Answer{answer("node-1", documents(""), 0)}, 0)
	if got := shown(t, before, after, inspect.Table{NoHeaders: true}); !strings.Contains(got, "no longer: broken firewall: a rule drops every packet\n") {
		t.Error(got)
	}
	if got := shown(t, after, before, inspect.Table{NoHeaders: true}); !strings.Contains(got, "remedy: delete the rule\n") {
		t.Error(got)
	}
}

func documents(finding string) string {
	if finding == "" {
		return diagnosis("well", "")
	}
	return diagnosis("broken", "", finding)
}

func TestNamesOfChanges(t *testing.T) {
	q := Question{Command: "services"}
	before := merge(q, []Answer{answer("node-1", service("ClusterIP", "Served", 2, address), 0)}, 0)
	for document, want := range map[string]string{`{"agent": true, "items": []}`: "", service("ClusterIP", "Served", 3, address): "shop/web\n"} {
		changes := Compare(before, merge(q, []Answer{answer("node-1", document, 0)}, 0))
		var out strings.Builder
		if err := PrintNames(&out, changes.Names()); err != nil || out.String() != want {
			t.Errorf("%s: %q, %v; want %q", document, &out, err, want)
		}
	}
}
