// Package fleet merges the answers of many nodes to one inspection command. It finds the nodes that disagree and those that did not
// respond. It also chooses the nodes to ask, and renders the result. Pure.
//
// May import: explain, finding, inspect and view.
package fleet
