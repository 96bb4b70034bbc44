// Package manifests is the source that reads Services, EndpointSlices and Nodes from the YAML and JSON files of a directory.
//
// It does what an API server does for its objects: it decodes strictly, reports positions, sets defaults and survives mistakes.
//
// May import: watch, model, k8s.io, sigs.k8s.io/yaml, zap, fsnotify.
package manifests
