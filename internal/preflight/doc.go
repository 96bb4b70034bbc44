// Package preflight reports what this machine lacks for kube-ipvs, and how to fix it.
//
// It probes the kernel features that the agent uses with requests that load modules but create nothing. The list of loaded
// modules is not enough: features may be built in, and the kernel loads modules on demand.
//
// May import: the standard library, finding, kernel, inet, the backends and their libraries.
package preflight
