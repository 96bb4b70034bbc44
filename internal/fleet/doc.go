// Package fleet merges the answers of many nodes to one inspection command: which nodes agree, which disagree, and which did not
// respond. It decides what to ask the nodes, and renders the result. Pure.
//
// May import: explain, inspect and view.
package fleet
