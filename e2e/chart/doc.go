// Package chart tests what people install: the Helm chart, the plain manifests that are rendered from it, and the image.
//
// It is a Go module of its own, because Helm as a library brings more than the whole product. `go test -update` writes the
// plain manifests, the golden files and the chart's README anew.
package chart
