// Package draw makes random but valid sets of Services, EndpointSlices and Nodes, changes them at random, counts the features
// that they have, and makes a failing set smaller.
//
// The same seed draws the same objects. Nothing here touches a kernel or an API server.
package draw
