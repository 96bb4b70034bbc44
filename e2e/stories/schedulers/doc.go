// Package schedulers proves, with real connections on a real kernel, how the annotations of a Service distribute
// its connections.
//
// Most agents read a directory of manifests, because an API server takes half a minute to start on an emulated machine.
// The tests write their measurements to measured.md in $LAB_OUT. docs/schedulers.md quotes these measurements.
package schedulers
