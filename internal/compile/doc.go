// Package compile turns what the cluster asks for (model) into what the kernel should hold (want), and reports what cannot be served
// as written.
//
// It is pure: same input, same output (I2). The unit of work is one Service, so that a change costs only its own size. Only claims on
// addresses, and endpoints at addresses of other Services, involve more than one; indexes keep that local (I12).
//
// The package is large because every decision about a packet is made here: which frontends a Service has and who wins one that several
// claim (frontends.go, claim.go), which endpoints a traffic policy allows (endpoints.go), how a virtual server distributes connections
// (balance.go, allports.go), and what the sets and rules around them do (sets.go, rules.go). Everything behind it only compares and
// writes. cluster.go keeps the result up to date, describe.go explains it to operators.
//
// May import: model, want, kernel, inet; of the standard library nothing that has a clock, a random number or a logger.
package compile
