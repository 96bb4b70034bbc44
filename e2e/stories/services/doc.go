// Package services tests the agent from end to end: real Services in a real API server, the real agent on every node, real
// packets between pods, hosts and clients outside, on a real kernel.
//
// It holds nothing but tests. `make e2e PKG=./e2e/stories/services` runs them; `make conformance` does, too, and writes
// docs/conformance.md from what they found. Most play on one shared stage (see onStage): three nodes, of which two have an
// endpoint. Each makes Services of its own there, and what it disturbs it puts back.
//
// A short run for a second kernel, some minutes, which meets every kind of Service, both policies, affinity, source ranges
// and UDP's memory:
//
//	make e2e PKG=./e2e/stories/services KERNEL=6.12 RUN='TestClusterIP/pod_to|TestNodePort/at_every|TestLoadBalancer/(reached|source_ranges$)|TestExternalIPs/reached|TestPolicies/external_Local|TestAffinity/at_a_ClusterIP|TestFlows/(a_one-way|packets_outside)'
package services
