// Package realcluster runs a Kubernetes cluster with real kubelets in one guest of the lab: a control plane, and
// nodes that run pods with containerd. Most tests use package cluster, which is faster.
//
// Package upstream builds all programs from Go modules, except runc and the tools in pods of Kubernetes' tests,
// which are Debian packages. This package unpacks the images on the host, where this takes seconds instead of
// minutes in an emulated guest.
package realcluster
