// Package schedulers measures on a real kernel, with real connections, how a Service with annotations shares them out: every
// scheduler against what it is expected to do, weights, affinity, limits, slow start, and changes under open connections.
//
// Most agents read a directory of manifests, since an API server takes an emulated machine half a minute. What was measured is
// written to measured.md in $LAB_OUT; docs/schedulers.md shows it.
package schedulers
