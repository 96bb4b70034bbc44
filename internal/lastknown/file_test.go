package lastknown

import (
	"bytes"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/goldentest"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

var (
	self = Identity{Node: "n1", APIServer: "https://192.0.2.1:6443"}
	noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
)

func drawState(t *rapid.T) *State {
	s := &State{At: noon, Contacts: []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:6443")}}
	s.Services = slices.Collect(maps.Values(compiletest.Services(t, "services")))
	s.Nodes = slices.Collect(maps.Values(compiletest.Around(t, "nodes").Nodes))
	return s
}

func encoded(t rapid.TB, s *State) []byte {
	var b bytes.Buffer
	if err := encode(&b, self, s); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawState(t)
		got, err := decode(bytes.NewReader(encoded(t, s)), self, noon.Add(time.Hour), 24*time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		if again := encoded(t, got); !bytes.Equal(again, encoded(t, s)) || !reflect.DeepEqual(got.Services, s.Services) {
			t.Fatalf("read %+v, want %+v", got, s)
		}
	})
}

// A damaged file must be rejected, unless the damage affects only unused bytes of the gzip header.
func TestDamage(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := drawState(t)
		whole := encoded(t, s)
		hurt := slices.Clone(whole)
		switch rapid.IntRange(0, 3).Draw(t, "damage") {
		case 0:
			hurt = hurt[:rapid.IntRange(0, len(hurt)-1).Draw(t, "length")]
		case 1:
			hurt[rapid.IntRange(0, len(hurt)-1).Draw(t, "at")] ^= byte(1 << rapid.IntRange(0, 7).Draw(t, "bit"))
		case 2:
			at := rapid.IntRange(0, len(hurt)-1).Draw(t, "at")
			clear(hurt[at:min(len(hurt), at+rapid.IntRange(1, 4096).Draw(t, "zeros"))])
		case 3:
			hurt = append(hurt, rapid.SliceOfN(rapid.Byte(), 1, 64).Draw(t, "more")...)
		}
		got, err := decode(bytes.NewReader(hurt), self, noon, time.Hour)
		if err == nil && !bytes.Equal(encoded(t, got), whole) {
			t.Fatalf("a damaged file was read as %+v", got)
		}
		if err != nil && got != nil {
			t.Fatal("got both an error and a state")
		}
	})
}

func TestNotUsed(t *testing.T) {
	s := &State{At: noon}
	for want, c := range map[string]struct {
		id  Identity
		now time.Time
	}{
		`from node "n1", not from "n2"`:                                                      {Identity{Node: "n2", APIServer: self.APIServer}, noon},
		"from the API server https://192.0.2.1:6443, not":                                    {Identity{Node: "n1", APIServer: "https://192.0.2.2:6443"}, noon},
		`service proxy name "", not "ours"`:                                                  {Identity{Node: "n1", APIServer: self.APIServer, ServiceProxyName: "ours"}, noon},
		"from a different cluster with the same API server address (https://192.0.2.1:6443)": {Identity{Node: "n1", APIServer: self.APIServer, Authorities: []string{"a"}}, noon},
		"1h0m1s old; the limit is 1h0m0s":                                                    {self, noon.Add(time.Hour + time.Second)},
		"ahead of the node's clock":                                                          {self, noon.Add(-2 * time.Hour)},
	} {
		if _, err := decode(bytes.NewReader(encoded(t, s)), c.id, c.now, time.Hour); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want %s", err, want)
		}
	}
}

// TestFormat fails if the format changes. In that case, increase the version and run the test with -update.
func TestFormat(t *testing.T) {
	var b strings.Builder
	seen := map[reflect.Type]bool{}
	for _, v := range []any{header{}, model.Service{}, model.Node{}} {
		describe(&b, reflect.TypeOf(v), seen)
	}
	goldentest.Compare(t, filepath.Join("testdata", "format-4.golden"), b.String())
}

func describe(b *strings.Builder, t reflect.Type, seen map[reflect.Type]bool) {
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice:
		describe(b, t.Elem(), seen)
	case reflect.Struct:
		if seen[t] || strings.HasPrefix(t.PkgPath(), "net") || t.PkgPath() == "time" {
			return
		}
		seen[t] = true
		for f := range t.Fields() {
			b.WriteString(t.Name() + "." + f.Name + " " + f.Type.String() + "\n")
		}
		for f := range t.Fields() {
			describe(b, f.Type, seen)
		}
	}
}

func TestWrite(t *testing.T) {
	path := filepath.Join(t.TempDir(), "snapshot")
	for _, at := range []time.Time{noon, noon.Add(time.Minute)} {
		if err := Write(path, self, &State{At: at}); err != nil {
			t.Fatal(err)
		}
		s, err := Read(path, self, noon, time.Hour)
		if err != nil || !s.At.Equal(at) {
			t.Fatalf("read %+v, %v", s, err)
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	if err := Write(filepath.Join(path, "below"), self, &State{}); err == nil {
		t.Error("got no error for a missing directory")
	}
	if _, err := os.Stat(path + ".new"); err == nil {
		t.Error("the temporary file still exists")
	}
}

func TestRemoteChanges(t *testing.T) {
	ready := func(addr, node string) model.Endpoint {
		e := compiletest.Ready(netip.MustParseAddr(addr))
		e.Node = node
		return e
	}
	svc := &model.Service{ID: model.ServiceID{Namespace: "default", Name: "web"}, Slices: []*model.EndpointSlice{{Name: "web-1", Endpoints: []model.Endpoint{
		ready("10.244.1.5", "n1"), ready("10.244.1.6", ""), ready("10.244.2.5", "n2"), {Addr: netip.MustParseAddr("10.244.2.6"), Terminating: true, Serving: true},
	}}}}
	s := &State{Services: []*model.Service{svc}, Nodes: []*model.Node{{Name: "n1", PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}}}}
	changes := s.RemoteChanges("n1")
	left := changes.Services[svc.ID].Slices[0].Endpoints
	if len(left) != 1 || left[0].Addr != netip.MustParseAddr("10.244.2.5") || len(svc.Slices[0].Endpoints) != 4 {
		t.Errorf("left: %+v", left)
	}
}
