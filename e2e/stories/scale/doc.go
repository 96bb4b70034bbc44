// Package scale proves, on a real kernel with ten thousand Services, that the cost of a change depends on its own size and not on the
// number of Services.
//
// It contains only tests.
package scale
