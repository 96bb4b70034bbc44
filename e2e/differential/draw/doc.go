// Package draw creates random but valid sets of Services, EndpointSlices and Nodes, changes them at random, counts the
// features that they cover, and shrinks failing sets.
//
// The same seed always yields the same objects. The package uses neither a kernel nor an API server.
package draw
