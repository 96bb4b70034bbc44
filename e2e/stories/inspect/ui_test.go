package inspect

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/internal/doctor"
	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/ui/node"
)

// page is one node's page.
type page struct {
	*stage
	url, name string
}

// TestUI sends the page's requests to a node with a real agent and real connections.
func TestUI(t *testing.T) {
	s := newStage(t)
	command := s.node.MustStart(t, s.binary, "ui", "--status-socket", s.socket)
	t.Cleanup(command.Kill)
	link := regexp.MustCompile(`http://127\.0\.0\.1:\d+/\?token=\w+`)
	cluster.Eventually(t, patience, "a link", func() error {
		if !link.MatchString(command.Log()) {
			return fmt.Errorf("ui printed %s", command.Log())
		}
		return nil
	})
	got, err := s.node.HTTPGet(link.FindString(command.Log()))
	if err != nil || got.Status != http.StatusOK {
		t.Fatal(got, err)
	}
	name := answer[map[string][]string](t, page{s, got.URL, ""}, "nodes", url.Values{})["nodes"][0]
	if again, err := s.node.HTTPGet(link.FindString(command.Log())); err != nil || again.Status != http.StatusForbidden {
		t.Errorf("the one-time link opened the page again: %v %v", again, err)
	}

	u := page{s, got.URL, name}
	testTraffic(t, u)
	overview := answer[node.Overview](t, u, "overview", url.Values{"filter": {"default/plain"}})
	if overview.Verdict != "well" || overview.Services.Count != services || overview.Totals == nil || overview.Totals.Services != services {
		t.Errorf("overview: %+v", overview)
	}
	paths := answer[[]explain.Explanation](t, u, "explain", url.Values{"to": {plainIP + ":80"}, "from": {s.client.V4.String()}})
	if len(paths) != 1 || paths[0].Verdict != explain.Passes || len(paths[0].Endpoints) != 3 {
		t.Errorf("explain: %+v", paths)
	}
	if changes := answer[inspect.HistoryList](t, u, "changes", url.Values{}); len(changes.Items) == 0 {
		t.Error("the agent's start is not among the changes")
	}
	if report := answer[doctor.Report](t, u, "doctor", url.Values{}); report.Paths == 0 {
		t.Errorf("doctor: %+v", report)
	}
}

// testTraffic opens connections and checks each endpoint's share.
func testTraffic(t *testing.T, u page) {
	for range 6 {
		u.client.Get(t, cluster.TCP, plainIP+":80")
	}
	var load node.ServiceDocument
	cluster.Eventually(t, patience, "the page shows six connections to three endpoints", func() error {
		load = answer[node.ServiceDocument](t, u, "service", url.Values{"service": {"default/plain"}})
		if total := load.Frontends[0].Hour[59].Connections + load.Frontends[0].Hour[58].Connections; total != 6 {
			return fmt.Errorf("%v connections in the last two minutes; %s", total, load.Error)
		}
		return nil
	})
	for _, flow := range load.Frontends[0].Flows {
		if flow.Total.Connections != 2 || flow.Share < 0.3 || flow.Share > 0.4 || flow.WeightShare < 0.3 || flow.WeightShare > 0.4 {
			t.Errorf("flow to %s: %+v", flow.Address, flow)
		}
	}
}

func answer[T any](t *testing.T, u page, question string, parameters url.Values) (out T) {
	t.Helper()
	parameters.Set("node", u.name)
	got, err := u.node.HTTPGet(u.url+"api/"+question+"?"+parameters.Encode(), cluster.Within(patience))
	if err == nil && got.Status != http.StatusOK {
		err = fmt.Errorf("status %d: %s", got.Status, got.Body)
	}
	if err == nil {
		err = json.Unmarshal([]byte(got.Body), &out)
	}
	if err != nil {
		t.Fatalf("%s: %v", question, err)
	}
	return out
}
