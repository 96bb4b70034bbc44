// Package node answers the questions of the page about one node: it joins the agent's view with the kernel's counters, and remembers the
// traffic of the last hour while the command runs.
//
// May import: doctor, explain, finding, inspect, kernel, ui and view.
package node
