// Command release makes everything that a release consists of, in one directory, on a machine without a container engine:
// docs/release.md lists it. With push, it puts the image and the chart of such a directory into a registry.
//
// It is a module of its own, so that neither the agent nor its tests depend on the libraries that write packages.
package main
