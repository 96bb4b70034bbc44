// Package guides proves that the commands in README.md and docs work and print what the pages show.
//
// A command that a page shows is in a fenced block. In a block of the kind "console" lines that start with "$ " are commands, and
// what follows is what they print:
//
//	```console
//	$ kube-ipvs services shop/cart
//	```
//
// A command may continue on the next lines, after a backslash or as a here-document. In the output, "..." stands for any text and, on
// a line of its own, for any number of lines. Only durations, times and the width of columns may differ. If a page shows no output,
// the command may print anything.
//
// HTML comments before a block, which readers do not see, control how it is run:
//
//	<!-- before: COMMAND -->   run COMMAND first, to create the situation that the page describes
//	<!-- after: COMMAND -->    run COMMAND after the block
//	<!-- exits: 3 -->          the last command exits with this status
//	<!-- not run: WHY -->      the block is not run, for this reason
//
// The fast tests of this package find blocks that are neither run nor excused, and broken links. The slow test runs all commands in
// the order of the pages on a small cluster, which stage_test.go describes. `make e2e PKG=./e2e/stories/guides` does it.
//
// May import: cluster, controlplane, upstream, labtest.
package guides
