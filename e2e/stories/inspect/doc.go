// Package inspect runs the commands that look inside a node, beside a running agent, and compares what they say with what real
// connections do.
//
// It holds nothing but tests.
package inspect
