// Package differential checks that kube-ipvs differs from the real kube-proxy in ipvs mode only where the difference is
// intended.
//
// It gives the same random Services, EndpointSlices and Nodes to both programs, which run on separate nodes, and
// compares virtual servers, destinations with weights, the addresses on kube-ipvs0, and a sample of connections with
// the source address that the server sees. A difference that matches no rule of package judge is a bug;
// docs/differences.md lists the rules.
//
// Package draw creates random but valid objects that cover every feature, and package judge defines what each program
// must do with them.
//
// The nodes belong to two clusters of network namespaces with identical addresses, and watch one API server. The test
// applies a batch of Services, compares, changes the batch several times, and compares after each change. One of the
// changes restarts both programs with different nodePortAddresses.
//
// Environment variables make the run longer, or repeat a part of it:
//
//	KUBE_IPVS_DIFFERENTIAL_SEED         seed of the random objects (1)
//	KUBE_IPVS_DIFFERENTIAL_BATCHES      number of batches (1)
//	KUBE_IPVS_DIFFERENTIAL_FIRST        number of the first batch (1); a batch depends on seed and number only
//	KUBE_IPVS_DIFFERENTIAL_SERVICES     Services in a batch (60)
//	KUBE_IPVS_DIFFERENTIAL_TRANSITIONS  changes of each batch (2)
//	KUBE_IPVS_DIFFERENTIAL_STATE        a file in $LAB_OUT with the finished batches, after which a later run continues
//	KUBE_IPVS_DIFFERENTIAL_REPLAY       saved YAML files, separated by commas, to apply in order instead
package differential
