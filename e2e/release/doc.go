// Command release builds all files of a release in one directory, on a machine without a container engine; docs/release.md
// lists them. With push, it pushes the image and the chart from such a directory to a registry.
//
// It is a separate module, so that neither the agent nor its tests depend on packaging libraries.
package main
