package judge

import (
	"strings"
	"testing"
)

// A port that the node needs is left to the node at its own addresses, and only there.
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
