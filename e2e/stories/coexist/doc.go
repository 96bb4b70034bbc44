// Package coexist proves that the agent works on a node together with network plugins and their rules and marks, host ports, sidecars,
// host firewalls, the real kube-proxy, and administrators who use iptables, ipset and ipvsadm. Only kube-proxy really runs; the tests
// recreate the rules of the other programs.
//
// It contains only tests. `make e2e PKG=./e2e/stories/coexist` runs them; docs/coexistence.md describes the results.
package coexist
