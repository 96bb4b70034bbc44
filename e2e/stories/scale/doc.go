// Package scale proves, on a real kernel with ten thousand Services, that the cost of a change depends on its size, not on the number of
// Services. It also proves that the agent copes with hundreds of changes a second, failing calls, and other programs.
package scale
