// Package draw creates random but valid sets of Services, EndpointSlices and Nodes, changes them at random, counts the features
// that they cover, and shrinks a failing set.
//
// The same seed draws the same objects. The package touches neither a kernel nor an API server.
package draw
