// Package judge compares what two programs made of the same objects: virtual servers with their destinations, addresses on
// kube-ipvs0, and what became of connections. Every difference has to match one of the Rules, or it is a bug.
//
// Nothing here touches a kernel. docs/differences.md is printed from the rules.
package judge
