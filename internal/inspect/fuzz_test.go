package inspect_test

import (
	"encoding/json"
	"io"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// FuzzStatus: status can print any answer, even from another agent version.
func FuzzStatus(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"agent":{"synced":true,"lastSync":{}},"sources":[{"name":"Service","error":"refused"}],"services":[{}]}`,
		`{"snapshot":{"file":"/f","served":true,"at":"2026-03-01T12:00:00Z"},"problems":["p"],"node":{"settings":[{}]}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var v view.View
		if json.Unmarshal(b, &v) != nil {
			return
		}
		if err := inspect.PrintStatus(io.Discard, inspect.StatusOf(&v, nil, inspect.Machine{})); err != nil {
			t.Error(err)
		}
	})
}
