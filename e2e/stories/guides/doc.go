// Package guides proves that the commands in README.md and docs work and print the output shown there.
//
// Commands on a page are in fenced blocks. In a "console" block, lines that start with "$ " are commands, and the lines below show
// their output:
//
//	```console
//	$ kube-ipvs services shop/cart
//	```
//
// A command may continue on the next lines, after a backslash or as a here-document. In the output, "..." stands for any text and,
// on its own line, for any number of lines. Only durations, times and column widths may differ. If a page shows no output, the
// command may print anything.
//
// HTML comments before a block are invisible to readers. They control how the block is run:
//
//	<!-- before: COMMAND -->   run COMMAND first, to create the situation that the page describes
//	<!-- after: COMMAND -->    run COMMAND after the block
//	<!-- exits: 3 -->          the last command exits with this status
//	<!-- not run: WHY -->      the block is not run, for this reason
//
// The slow test runs all commands on a small cluster (see stage_test.go): `make e2e PKG=./e2e/stories/guides`.
//
// May import: cluster, controlplane, upstream, labtest.
package guides
