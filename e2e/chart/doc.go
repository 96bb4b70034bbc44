// Package chart tests that the Helm chart and the plain manifests rendered from it install a working agent with minimal
// privileges.
//
// It is a separate Go module, because the Helm library has more dependencies than the agent. `go test -update` rewrites the plain
// manifests, the golden files and the chart's README.
package chart
