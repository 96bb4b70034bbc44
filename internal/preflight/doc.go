// Package preflight reports which requirements of kube-ipvs this machine does not meet, and suggests remedies.
//
// To probe a kernel feature, it sends a request that loads the feature's module but creates nothing. The list of loaded
// modules is not enough: features may be built in, and the kernel loads modules on demand.
//
// May import: the standard library, finding, kernel, inet, the backends and their libraries.
package preflight
