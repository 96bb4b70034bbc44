// Package differential gives random Services, EndpointSlices and Nodes to the real kube-proxy in ipvs mode and to our agent,
// each on a node of its own, and compares what they make of them: virtual servers, destinations with their weights, the
// addresses on kube-ipvs0, and a sample of connections with the source that the server sees. Every difference has to match a
// rule of package judge, which docs/differences.md prints; what else differs is a bug.
//
// Both nodes belong to clusters of network namespaces that are equal to the last address, and follow one API server. A batch
// of Services is given at once, compared, then changed some times, and compared after each change. One of the changes starts both
// programs again, with other nodePortAddresses.
//
// Variables of the environment make the run longer, or repeat a part of it:
//
//	KUBE_IPVS_DIFFERENTIAL_SEED         what is drawn (1)
//	KUBE_IPVS_DIFFERENTIAL_BATCHES      how many batches (1)
//	KUBE_IPVS_DIFFERENTIAL_FIRST        number of the first one (1); a batch depends on seed and number only
//	KUBE_IPVS_DIFFERENTIAL_SERVICES     Services in a batch (60)
//	KUBE_IPVS_DIFFERENTIAL_TRANSITIONS  changes of each batch (2)
//	KUBE_IPVS_DIFFERENTIAL_STATE        a file in $LAB_OUT that remembers finished batches; a run that finds it goes on behind them
//	KUBE_IPVS_DIFFERENTIAL_REPLAY       saved YAML files, separated by commas, to give one after the other instead
package differential
