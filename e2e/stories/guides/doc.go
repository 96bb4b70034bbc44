// Package guides reads README.md and the pages of docs as their readers do, and does what they say.
//
// A command that a page shows is in a fenced block. In a block of the kind "console" lines that start with "$ " are commands, and
// what follows is what they print:
//
//	```console
//	$ kube-ipvs services shop/cart
//	```
//
// A command may go on in the next lines: after a backslash, or as a here-document. In what is printed, "..." stands for any text,
// and on a line of its own for any number of lines. Durations, times and the width of columns may differ. Nothing else may.
// A command that says more than the page shows is no difference where the page shows nothing.
//
// Comments of HTML before a block, which no reader sees, say more:
//
//	<!-- before: COMMAND -->   run COMMAND first, to bring about what the page talks of
//	<!-- after: COMMAND -->    run COMMAND when the block is done
//	<!-- exits: 3 -->          the last command ends with this status
//	<!-- not run: WHY -->      the block is not run, for this reason
//
// The fast tests of this package say which block is neither run nor excused, and which link leads nowhere. The slow one runs
// everything in order of the pages on a small cluster: stage_test.go tells what is there. `make e2e PKG=./e2e/stories/guides` does it.
//
// May import: cluster, controlplane, upstream, labtest.
package guides
