// Command release builds all files of a release in one directory. It needs no container engine. docs/release.md lists
// the files. The subcommand push uploads the image and the chart to a registry.
//
// It is a separate module, so that neither the agent nor its tests depend on packaging libraries.
package main
