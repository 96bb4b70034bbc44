// Package watch turns Kubernetes objects into the model: what the cluster asks of this node.
//
// There are two sources, the API server ([API]) and a directory of manifests ([Manifests]). Both feed one [Store], which
// parses every object once and keeps only what the model needs of it, groups EndpointSlices by Service, and remembers what
// changed. A reader waits on Changed, and calls Take when Synced.
//
// What this package owns:
//
//   - Fail static. Silence, errors and unreadable files take nothing away. Only an object that a source says is gone, or
//     that stopped being eligible, disappears.
//   - I11. A wrong object is a [model.Problem] that names the object, the field, its value and what would be right. The wrong
//     part is left out, everything else goes on. Code after this package never checks again whether an address is an address.
//   - Order does not matter. Any interleaving of the same objects ends in the same model (F13): nothing here depends on a
//     Service coming before its slices, or on a slice leaving one Service before it joins another.
//
// May import: model, inet, k8s.io, zap, fsnotify. Never kernel, compile or anything behind them.
package watch
