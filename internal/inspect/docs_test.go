package inspect

import (
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// TestInspectionPage: docs/inspection.md names every field of the documents and every state.
func TestInspectionPage(t *testing.T) {
	text, err := os.ReadFile("../../docs/inspection.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	for _, document := range []any{
		Status{}, ServiceList{}, ConnectionList{}, Connection{}, view.Service{}, view.Frontend{}, view.Endpoint{}, view.Connections{},
		view.View{}, view.Agent{}, view.Node{}, view.Source{}, view.Snapshot{},
		view.Forwarded{}, view.ForwardedServer{}, view.ForwardedEndpoint{}, view.ForwardedTraffic{}, view.ForwardedConnection{},
		HistoryList{}, view.PastSync{}, view.Some[string]{}, view.Failure{}, view.Cause{}, view.OperationCount{}, view.StageSeconds{},
	} {
		of := reflect.TypeOf(document)
		for i := range of.NumField() {
			name, _, _ := strings.Cut(of.Field(i).Tag.Get("json"), ",")
			if name != "" && !strings.Contains(page, "`"+name+"`") {
				t.Errorf("the page does not name the field %s of %s", name, of)
			}
		}
	}
	past, err := os.ReadFile("../view/history.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?:SyncKind|Reason) += "(\w+)"`).FindAllStringSubmatch(string(past), -1) {
		if !strings.Contains(page, "`"+m[1]+"`") {
			t.Errorf("the page does not explain %s in the history", m[1])
		}
	}
	source, err := os.ReadFile("../view/view.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?:Frontend|Endpoint)State = "(\w+)"`).FindAllStringSubmatch(string(source), -1) {
		if !regexp.MustCompile("(?m)^\\| .*`" + m[1] + "`.* \\|").MatchString(page) {
			t.Errorf("the page does not explain the state %s", m[1])
		}
	}
}
