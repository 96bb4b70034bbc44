// Package realcluster runs a Kubernetes cluster with real kubelets in one guest of the lab: a control plane, and
// nodes that run pods with containerd. Most tests use package cluster, which is faster.
//
// Package upstream builds the programs from Go modules. Only runc and the tools in the pods of Kubernetes' tests come
// from Debian packages. This package unpacks the images on the host, because that takes seconds instead of the minutes
// that it takes in an emulated guest.
package realcluster
