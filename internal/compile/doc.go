// Package compile turns the state of the cluster (model) into the wanted state of the kernel (want), and reports what cannot be served as
// written.
//
// The package is pure: the same input always gives the same output (I2). The unit of work is one Service, so the cost of a change is proportional to
// that Service. Several Services are involved only if they claim the same address, or if an endpoint has the address of another Service. Indexes find
// such Services (I12).
//
// The package is large because every decision about a packet is made here. Each file uses only files in its own group and in the groups
// above it:
//
//   - without Services: config.go, sets.go, rules.go, rules_ipvs.go, rules_balancing.go, base.go
//   - what a Service can request, and which of two claims wins: frontends.go, claim.go, bounds.go, backlog.go
//   - what is known about this node: virtual.go, apiserver.go, node_context.go, node_objects.go, schedulers.go
//   - reach, the frontends that a Service can have on this node: reach.go, reach_wide.go, service_frontends.go
//   - one Service: endpoints.go, unserved.go, balance.go, health.go, virtual_server.go, allports.go, service.go
//   - all Services: cluster.go, learn.go and update.go keep the result up to date, facts.go receives changes, and served.go and
//     describe.go explain the result
//
// May import: model, want, kernel, inet; nothing from the standard library with a clock, random numbers or a logger.
package compile
