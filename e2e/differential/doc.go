// Package differential checks that kube-ipvs differs from the real kube-proxy in ipvs mode only in intended ways.
//
// The test gives the same random Services, EndpointSlices and Nodes to both programs, which run on separate nodes. It
// compares virtual servers, destinations with weights, the addresses on kube-ipvs0, and a sample of connections. A
// difference that matches no rule of package judge is a bug. docs/differences.md lists the rules and the environment
// variables.
//
// Package draw creates random but valid objects that cover every feature, and package judge defines what each program
// must do with them.
//
// The nodes belong to two clusters of network namespaces with identical addresses. Both programs watch the same API
// server. The test applies a batch of Services, changes it several times, and compares after each step. One of the
// changes restarts both programs with different nodePortAddresses.
package differential
