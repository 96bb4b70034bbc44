// Package watch turns Kubernetes objects into the model, which describes what this node must serve.
//
// [API] is the source that watches the API server. Package manifests contains the other source. Both sources feed a [Store],
// which parses each object once, keeps only the fields in the model, groups EndpointSlices by Service and tracks changes. A
// reader waits on Changed and calls Take once Synced is true.
//
// Guarantees of this package:
//
//   - Fail static. Silence, errors and unreadable files never remove anything. An object disappears only if its source
//     deletes it or if it is no longer eligible.
//   - I11. A mistake in an object is a [model.Problem] that names the object, the field, its value and a remedy. The wrong part
//     is left out; everything else is served. No later package validates addresses again.
//   - Order does not matter. Any interleaving of the same objects gives the same model: a slice may arrive before its Service
//     or move to another Service before it leaves the first.
//
// Half of the code parses annotations, Services, EndpointSlices and Nodes, and reports a Problem for each way in which a field
// can be wrong. The rest is the Store, and list and watch calls for client-go's reflector, which has neither timeouts for
// silent servers nor a limit on new watches.
//
// May import: model, inet, k8s.io, zap. Never kernel, compile or a package that depends on them.
package watch
