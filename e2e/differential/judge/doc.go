// Package judge compares the kernel state that two programs derive from the same objects: virtual servers with their
// destinations, addresses on kube-ipvs0, and the outcome of connections. A difference that matches none of the Rules
// is a bug. docs/differences.md is generated from them.
package judge
