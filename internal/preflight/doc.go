// Package preflight says what this machine lacks for kube-ipvs, and what to do about it.
//
// It asks the kernel for what will be used, in ways that load modules but create nothing; what lsmod prints says little, because
// features may be built in, and modules load by themselves.
//
// May import: the standard library, kernel, inet, the backends and their libraries.
package preflight
