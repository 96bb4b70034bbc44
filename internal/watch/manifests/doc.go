// Package manifests is the source that reads Services, EndpointSlices and Nodes from the YAML and JSON files of a directory.
//
// Like an API server, it decodes strictly and sets defaults. It also reports the positions of mistakes, and uses the valid
// parts of a file.
//
// May import: watch, model, k8s.io, sigs.k8s.io/yaml, zap, fsnotify.
package manifests
