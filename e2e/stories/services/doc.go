// Package services tests the agent from end to end: real Services in a real API server, the real agent on every node,
// and real packets between pods, hosts and outside clients on a real kernel.
//
// It contains only tests. `make e2e PKG=./e2e/stories/services` runs the tests. `make nightly` also runs them on stock
// kernels, and docs/conformance.md lists the kernels on which they passed. Most tests share one stage (see onStage):
// three nodes, two of them with an endpoint. Each test creates its own Services and restores what it disturbs. Package
// manifest explains the YAML of the Services.
//
// A short run for a second kernel takes a few minutes and covers every kind of Service, both policies, affinity, source
// ranges and UDP flows (join the lines):
//
//	make e2e PKG=./e2e/stories/services KERNEL=6.12 RUN='TestClusterIP/pod_to|TestNodePort/at_every|
//	  TestLoadBalancer/(reached|source_ranges$)|TestExternalIPs/reached|TestPolicies/external_Local|
//	  TestAffinity/at_a_ClusterIP|TestFlows/(a_one-way|packets_outside)'
package services
