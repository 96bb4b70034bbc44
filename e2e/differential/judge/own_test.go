package judge

import (
	"strings"
	"testing"
)

// TestNeededPort: on the node's own addresses, Services cannot claim a port that the node needs.
func TestNeededPort(t *testing.T) {
	const clusterIP, own, elsewhere = "10.96.0.5", "192.168.50.11", "198.18.7.1"
	servers := func(port string, addrs ...string) State {
		lines := ""
		for _, a := range addrs {
			lines += strings.NewReplacer("10.96.0.5:80", a+":"+port).Replace(webTable)
		}
		return state(t, lines, "")
	}
	for _, try := range []struct {
		name, port, external string
		theirs, ours         []string
		bugs                 int
	}{
		{"left to the node", "22", own, []string{clusterIP, own}, []string{clusterIP}, 0},
		{"taken from the node", "22", own, []string{clusterIP, own}, []string{clusterIP, own}, 1},
		{"only we take it", "22", own, []string{clusterIP}, []string{clusterIP, own}, 1},
		{"the ClusterIP is left out, too", "22", own, []string{clusterIP, own}, nil, 1},
		{"another address is left out", "22", elsewhere, []string{clusterIP, elsewhere}, []string{clusterIP}, 1},
		{"another port is left out", "80", own, []string{clusterIP, own}, []string{clusterIP}, 1},
	} {
		m := strings.ReplaceAll(manifest("web", clusterIP, try.external, "Cluster", "10.244.2.2"), "port: 80,", "port: "+try.port+",")
		bugs, tally := judged(t, situation(t, m), servers(try.port, try.theirs...), servers(try.port, try.ours...))
		if held := tally.Rules["needed-port"].Held > 0; len(bugs) != try.bugs || held != (try.port == "22" && try.external == own) {
			t.Errorf("%s: the rule held: %t; %v", try.name, held, bugs)
		}
	}
}

// TestNodePortBesideOwnClusterIP: a node port is served on the node's own address, even if that address is also a
// ClusterIP.
func TestNodePortBesideOwnClusterIP(t *testing.T) {
	const own = "192.168.50.11"
	like := strings.ReplaceAll(manifest("like", own, "198.18.7.1", "Cluster", "10.244.2.3"), "port: 80,", "port: 30080,")
	c := situation(t, manifest("web", "10.96.0.5", "198.18.7.2", "Cluster", "10.244.2.2")+strings.ReplaceAll(like, "nodePort: 30080", "nodePort: 30081"))
	table := func(endpoint string) State {
		return state(t, strings.NewReplacer("10.96.0.5:80", own+":30080", "10.244.2.2", endpoint).Replace(webTable), "")
	}
	for _, try := range []struct {
		theirs, ours string
		bugs         int
	}{{"10.244.2.3", "10.244.2.2", 0}, {"10.244.2.2", "10.244.2.2", 0}, {"10.244.2.2", "10.244.2.3", 1}} {
		if bugs, _ := judged(t, c, table(try.theirs), table(try.ours)); len(bugs) != try.bugs {
			t.Errorf("kube-proxy %s, kube-ipvs %s: %v", try.theirs, try.ours, bugs)
		}
	}
}
