// Package kubeproxy plays the cases of conformance.Contrasts twice: on a node with the agent, and on a node of the same cluster
// with the real kube-proxy in its ipvs mode. A case fails when kube-ipvs does something else than it should, and also when
// kube-proxy does: then it has changed, or the story cannot tell right from wrong.
//
// It holds nothing but tests.
package kubeproxy
