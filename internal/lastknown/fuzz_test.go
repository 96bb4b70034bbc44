package lastknown

import (
	"bytes"
	"compress/gzip"
	"testing"
	"time"
)

func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"magic":"kube-ipvs snapshot","version":2,"node":"n1","apiServer":"https://192.0.2.1:6443","at":"2026-03-01T12:00:00Z","services":1}` + "\n{}\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var file bytes.Buffer
		w := gzip.NewWriter(&file)
		_, _ = w.Write(b)
		_ = w.Close()
		if s, err := decode(&file, self, noon, time.Hour); err == nil {
			t.Errorf("%q is used: %+v", b, s)
		}
	})
}
