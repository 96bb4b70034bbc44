package doctor

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// ReadPods finds the pods on this node: those that the kernel knows.
func (f *Facts) ReadPods(h Host) {
	pods, err := h.Pods()
	if err != nil {
		f.unread("pods that are no endpoints", err)
	}
	f.Pods = slices.DeleteFunc(pods, func(p kernel.Pod) bool { return isDockers(p.Interface) })
}

// ClientPods returns the addresses of the pods on this node. Pods that are no endpoints come first.
func (f *Facts) ClientPods() []netip.Addr {
	ends := endpointsHere(f.View)
	var pods []netip.Addr
	for _, p := range f.Pods {
		if !slices.Contains(ends, p.Addr) {
			pods = append(pods, p.Addr)
		}
	}
	return append(pods, ends...)
}

// checkPodAddresses finds pods with an address that also belongs to an interface of this node, which then keeps the pod's packets.
func checkPodAddresses(f Facts) []finding.Finding {
	var evidence []string
	for _, p := range f.Pods {
		for _, i := range f.Interfaces {
			if slices.ContainsFunc(i.Networks, func(n netip.Prefix) bool { return n.Addr() == p.Addr }) {
				evidence = append(evidence, fmt.Sprintf("%s, the address of the pod behind %s, is also an address of %s", p.Addr, p.Interface, i.Name))
			}
		}
	}
	if len(evidence) == 0 {
		return nil
	}
	return finding.One(finding.Broken, "addresses of pods", "also belong to this node, which keeps the packets to these pods", examples(evidence),
		"remove the address from the interface, and stop the program that added it")
}
