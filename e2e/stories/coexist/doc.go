// Package coexist proves that the agent works on a node alongside network plugins and their rules and marks, host
// ports, sidecars, host firewalls, the real kube-proxy, and administrators who use iptables, ipset and ipvsadm. Of
// these programs, only kube-proxy really runs. The tests recreate the other programs' rules.
//
// It contains only tests. `make e2e PKG=./e2e/stories/coexist` runs them; docs/coexistence.md describes the results.
package coexist
