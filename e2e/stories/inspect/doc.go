// Package inspect compares the output of the inspection commands (services, conns, status, explain) with the behavior of real
// connections.
package inspect
