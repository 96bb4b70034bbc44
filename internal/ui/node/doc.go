// Package node answers the page's questions about one node. It combines the agent's view with the kernel's counters, and records the
// traffic of the last hour while the command runs.
//
// May import: doctor, explain, finding, inspect, kernel, ui and view.
package node
