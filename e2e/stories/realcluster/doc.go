// Package realcluster tests on nodes with real kubelets and containerd what a user does with kube-ipvs: install it, use it, upgrade
// and remove it, and move from kube-proxy. make cluster-test runs it.
package realcluster
