// Package contest notices that another program keeps changing what the agent repairs: a second proxy on the node, for example.
//
// May import: inet, kernel and model. It has no clock of its own: every method takes the time.
package contest
