package explain_test

import (
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/explain"
)

func FuzzParseQuery(f *testing.F) {
	for _, seed := range []string{"10.96.0.10:53/udp", "[fd00::10]:53", "kube-system/kube-dns:dns", "default/web", "a/b/c", "", "10.0.0.1:0"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		q, err := explain.ParseQuery(text)
		if err != nil {
			return
		}
		isAddress, isService := q.Addr.IsValid() && q.Addr.Port() > 0, q.Service.Namespace != "" && q.Service.Name != ""
		if isAddress == isService {
			t.Errorf("%q is %+v", text, q)
		}
	})
}
