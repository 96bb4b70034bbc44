package watch

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/watch/watchtest"
)

// The first changes contain the API server's version. Later changes contain it only if it has changed. If the API server does not report its version,
// nothing changes.
func TestAPIReportsTheServersVersion(t *testing.T) {
	const silent = ""
	answer := func(server *watchtest.Server, minor string) (asked chan struct{}) {
		asked = make(chan struct{}, 100)
		server.SetFault(func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path != "/version" {
				return false
			}
			defer func() { asked <- struct{}{} }()
			if minor == silent {
				w.WriteHeader(http.StatusForbidden)
				return true
			}
			_, _ = fmt.Fprintf(w, `{"major": "1", "minor": %q, "gitVersion": "v1.%s.3-distribution"}`, minor, minor)
			return true
		})
		return asked
	}
	server := watchtest.New(t)
	server.Put(testService("web", nil), testSlice("web-1", "web", nil), testNode())
	answer(server, "39+")
	api := mustAPI(t, watchtest.Config(server.Start()), quick())
	run(t, api)
	for !api.Synced() {
		<-api.Changed()
	}
	if v := api.Take().Version; v != (model.Version{Major: 1, Minor: 39}) {
		t.Errorf("got version %v with the first list, want 1.39", v)
	}
	for _, step := range []struct {
		minor string
		want  model.Version
	}{{"39", model.Version{}}, {silent, model.Version{}}, {"40", model.Version{Major: 1, Minor: 40}}} {
		asked := answer(server, step.minor)
		for range 2 { // the second request shows that the agent has handled the answer to the first
			server.CutWatches()
			<-asked
		}
		got := api.Take().Version
		if got != step.want {
			t.Errorf("minor version %q: got version %v, want %v", step.minor, got, step.want)
		}
	}
}

func TestParseVersion(t *testing.T) {
	for answer, want := range map[string]model.Version{
		`{"major": "1", "minor": "36"}`:  {Major: 1, Minor: 36},
		`{"major": "1", "minor": "36+"}`: {Major: 1, Minor: 36},
		`{"major": "", "minor": ""}`:     {},
		`{"major": "1", "minor": "-3"}`:  {},
		`{"major": "1"}`:                 {},
		`<html>`:                         {},
	} {
		if got, err := parseVersion([]byte(answer)); got != want || (err == nil) != (want != model.Version{}) {
			t.Errorf("%s: got %v, %v, want %v", answer, got, err, want)
		}
	}
}
