// Package schedulers tests how the annotations of a Service affect the distribution of its connections.
//
// Most agents read a directory of manifests, because an API server takes half a minute to start on an emulated machine.
// The tests write their measurements to measured.md in $LAB_OUT. docs/schedulers.md quotes these measurements.
package schedulers
