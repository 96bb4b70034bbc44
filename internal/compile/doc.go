// Package compile turns the state of the cluster (model) into the wanted state of the kernel (want), and reports what cannot be served as
// written.
//
// It is pure: same input, same output (I2). The unit of work is one Service, so the cost of a change is proportional to that Service. Only
// claims to addresses, and endpoints at addresses of other Services, involve several Services; indexes keep that local (I12).
//
// The package is large because every decision about a packet is made here: which frontends a Service has and which Service wins a contested
// one (frontends.go, claim.go), which endpoints a traffic policy allows (endpoints.go), how a virtual server distributes connections
// (balance.go, allports.go), and the sets and rules around them (sets.go, rules.go). All later steps only compare and write. cluster.go
// keeps the result up to date, describe.go explains it to operators.
//
// May import: model, want, kernel, inet; of the standard library nothing with a clock, a random number or a logger.
package compile
