// Package kubeproxy runs the cases of conformance.Contrasts twice: on a node with kube-ipvs, and on a node of the same cluster with the real
// kube-proxy in its ipvs mode. A case fails when either behaves differently than documented. If kube-proxy does, it has changed, or the story no
// longer proves anything.
//
// It contains only tests. Their Services are in testdata/services.txtar.
package kubeproxy
