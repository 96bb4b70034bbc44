// Package realcluster runs a Kubernetes cluster with real kubelets in one guest of the lab: a control plane, and nodes that run pods
// with containerd. Package cluster is quicker, and is what most tests use: its nodes are network namespaces in which the tests
// themselves do what a kubelet would.
//
// A node has network, mount, process and host name namespaces and a cgroup of its own. All programs are built from Go modules (package
// upstream), except runc and what the pods of Kubernetes' tests call, which are Debian's. The images are made here, and unpacked
// once on the host: that takes seconds there, and minutes in an emulated guest.
package realcluster
