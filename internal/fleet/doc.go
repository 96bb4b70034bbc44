// Package fleet selects the nodes to query, merges their answers to one inspection command, and prints the result. It
// detects nodes that disagree and nodes that did not respond. Pure.
//
// May import: explain, finding, inspect and view.
package fleet
