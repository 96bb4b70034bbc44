package explain_test

import (
	"fmt"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/explain"
)

// TestParseClient: a client is an address with an optional port. Its address family must match the query.
func TestParseClient(t *testing.T) {
	query, err := explain.ParseQuery("10.96.0.1:80")
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"":                    "invalid IP 0",
		"10.244.1.7":          "10.244.1.7 0",
		"::ffff:10.244.1.7":   "10.244.1.7 0",
		"10.244.1.7:40312":    "10.244.1.7 40312",
		"[::ffff:10.1.1.1]:9": "10.1.1.1 9",
		"fd00::7":             "fd00::7 0, --from fd00::7 and 10.96.0.1:80 are of different address families",
		"10.244.1.7:0":        "error",
		"web":                 "error",
	} {
		client, err := explain.ParseClient(text)
		got := fmt.Sprint(client.From, " ", client.FromPort)
		if different := query.CheckFamily(client); different != nil {
			got += ", " + different.Error()
		}
		if err != nil {
			got = "error"
		}
		if got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}
