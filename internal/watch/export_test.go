package watch

import (
	"testing"

	"k8s.io/client-go/rest"
)

// This file exports identifiers to tests that import package manifests and therefore cannot be in package watch.
const EveryType = everyType

var EqualService, EqualSlice, EqualNode = equalService, equalSlice, equalNode

// StartAPI starts a source and stops it at the end of the test.
func StartAPI(t *testing.T, config *rest.Config) *API {
	t.Helper()
	api := mustAPI(t, config, defaultTiming())
	run(t, api)
	return api
}
