// Package inspect shows the wanted state and plans as text that a support engineer reads, and as JSON.
//
// It is pure. May import: kernel, want, diff, inet.
package inspect
