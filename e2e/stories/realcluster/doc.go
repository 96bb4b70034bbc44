// Package realcluster tests what users do with kube-ipvs, on nodes with real kubelets and containerd: install it, use it, upgrade it,
// remove it, and migrate from kube-proxy. make cluster-test runs it.
package realcluster
