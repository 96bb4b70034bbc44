// Package watch turns Kubernetes objects into the model, which describes what this node must serve.
//
// [API] is the source that watches the API server; package manifests is the other source. Both feed a [Store], which parses each
// object once, keeps only what the model needs, groups EndpointSlices by Service and tracks changes. A reader waits on Changed
// and calls Take once Synced is true.
//
// Guarantees of this package:
//
//   - Fail static. Silence, errors and unreadable files never remove anything. An object disappears only when its source
//     deletes it or when it is no longer eligible.
//   - I11. A mistake in an object is a [model.Problem] that names the object, the field, its value and a remedy. The wrong part
//     is left out; everything else is served. No later package validates addresses again.
//   - Order does not matter. Any interleaving of the same objects gives the same model: a slice may arrive before its Service
//     or move to another Service before it leaves the first.
//
// Half of the code is the table of annotations and the parsing of Services, EndpointSlices and Nodes, with a Problem for each
// way in which a field can be wrong. The rest is the Store, and the list and watch calls around client-go's reflector, which
// has neither timeouts for silent servers nor a limit on new watches.
//
// May import: model, inet, k8s.io, zap. Never kernel, compile or a package that depends on them.
package watch
