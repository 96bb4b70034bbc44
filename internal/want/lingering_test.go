package want_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

// None of our virtual servers lingers if a foreign one has the key of a wanted one.
func TestForeignServersDoNotLinger(t *testing.T) {
	key := kernel.ServerKey{Addr: netip.MustParseAddrPort("10.96.0.1:0"), Protocol: inet.TCP}
	server := want.Server{Server: kernel.Server{Key: key}}
	s, touched := want.New(want.Base{}), want.NewTouched()
	s.Replace(nil, want.Fragment{server}, touched)
	s.SetForeign(key, true, touched)
	s.SetLingering(s.Lingering, map[kernel.ServerKey]*want.Server{key: &server}, touched)
	s.SetLingering(slices.Values([]kernel.ServerKey{key}), nil, touched)
	if s.Lingers(key) || s.Servers[key] != nil || s.Foreign()[key] == nil {
		t.Errorf("lingers %t, wanted %v, foreign %v", s.Lingers(key), s.Servers[key], s.Foreign())
	}
}
