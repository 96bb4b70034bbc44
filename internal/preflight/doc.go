// Package preflight reports which requirements of kube-ipvs this machine does not meet, and suggests remedies.
//
// It probes the kernel features that the agent uses with requests that load modules but create nothing. The list of
// loaded modules is not sufficient: features may be built in, and the kernel loads modules on demand.
//
// May import: the standard library, finding, kernel, inet, the backends and their libraries.
package preflight
