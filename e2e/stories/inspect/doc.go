// Package inspect proves that the inspection commands (services, conns, status, explain) tell the truth: it compares their output
// with what real connections do.
//
// It contains only tests.
package inspect
