// Package kubeproxy runs the cases of conformance.Contrasts twice: on a node with kube-ipvs, and on a node of the same
// cluster with the real kube-proxy in its ipvs mode. A case fails if either program does not behave as documented. If
// kube-proxy deviates, either kube-proxy has changed or the story no longer proves anything.
//
// It contains only tests. Their Services are in testdata/services.txtar.
package kubeproxy
