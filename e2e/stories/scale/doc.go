// Package scale proves, on a real kernel with ten thousand Services, that the cost of a change depends on its own size and not on the
// number of Services; and that the agent there copes with hundreds of changes a second, with failing calls, and with other programs.
//
// It contains only tests.
package scale
