// Package fleet merges the answers of many nodes to one inspection command. It detects nodes that disagree and nodes
// that did not respond. It also selects the nodes to query, and prints the result. Pure.
//
// May import: explain, finding, inspect and view.
package fleet
