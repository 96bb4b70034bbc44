package agent

import (
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

type sample struct {
	kinds map[kindAndFamily]int
	vital int
}

type kindAndFamily struct {
	kind   view.Kind
	family inet.Family
}

const (
	sampledOfKind, sampledVital     = 3, 8
	sampledFrontends, sampledSlices = 32, 4
)

// add reports whether the sample has room for the Service. The calls come in random order, because the caller iterates
// over a map.
func (n *sample) add(svc *compile.Compiled) bool {
	s := svc.Source()
	if svc.FrontendCount() > sampledFrontends || len(s.Slices) > sampledSlices {
		return false
	}
	if dns := slices.ContainsFunc(s.Ports, isDNS); s.ID.Vital(dns) && n.vital < sampledVital {
		n.vital++
		return true
	}
	missing, own := false, map[kindAndFamily]bool{}
	for kind, family := range svc.Kinds {
		key := kindAndFamily{kind, family}
		missing, own[key] = missing || n.kinds[key] < sampledOfKind, true
	}
	if !missing || len(s.Slices) == 0 {
		return false
	}
	for key := range own {
		n.kinds[key]++
	}
	return true
}

func isDNS(p model.ServicePort) bool { return p.Port == 53 && p.Protocol == inet.UDP }
