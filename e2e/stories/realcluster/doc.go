// Package realcluster tests what users do with kube-ipvs: install it, use it, upgrade it, remove it, and migrate from kube-proxy. The
// nodes run real kubelets and containerd. make cluster-test runs it.
package realcluster
