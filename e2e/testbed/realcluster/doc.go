// Package realcluster runs a Kubernetes cluster with real kubelets in one guest of the lab: a control plane, and nodes
// that run pods with containerd. Most tests use package cluster, which is faster. Its nodes are network namespaces, in
// which the tests act as the kubelet.
//
// A node has its own network, mount, process and host name namespaces, and a cgroup. Package upstream builds all
// programs from Go modules, except runc and the tools in pods of Kubernetes' tests, which are Debian packages. This
// package builds the images and unpacks them once on the host, where this takes seconds instead of minutes in an
// emulated guest.
package realcluster
