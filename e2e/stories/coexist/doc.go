// Package coexist shows the agent beside others on a node: network plugins and their rules and marks, host ports, sidecars,
// host firewalls, the real kube-proxy, and people with iptables, ipset and ipvsadm. The tests set up what the others make;
// none of the others runs but kube-proxy.
//
// It holds nothing but tests. `make e2e PKG=./e2e/stories/coexist` runs them; docs/coexistence.md says what they show.
package coexist
