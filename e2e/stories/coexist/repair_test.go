package coexist

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// show is a command whose output differs until the damage is repaired.
var damages = []struct{ name, script, show string }{
	{"ipvsadm -C", "ipvsadm -C", "ipvsadm -Sn"},
	{"a virtual server deleted", "ipvsadm -D $(ipvsadm -Sn | awk '/^-A -t/ {print $2, $3; exit}')", "ipvsadm -Sn"},
	{"iptables -t nat -F", "iptables -w -t nat -F", "iptables-save -t nat"},
	{"ip6tables -t mangle -F", "ip6tables -w -t mangle -F", "ip6tables-save -t mangle"},
	{"a chain removed", "iptables -w -t nat -F KUBE-IPVS-OUTPUT; iptables -w -t nat -D OUTPUT -j KUBE-IPVS-OUTPUT -m comment --comment \"$(iptables-save -t nat | " +
		"sed -n 's/^-A OUTPUT -m comment --comment \"\\(.*\\)\" -j KUBE-IPVS-OUTPUT$/\\1/p')\"; iptables -w -t nat -X KUBE-IPVS-OUTPUT", "iptables-save -t nat"},
	{"a jump removed", "iptables -w -t filter -D INPUT 1", "iptables-save -t filter"},
	{"ipset flush", "ipset flush", "ipset save"},
	{"a sysctl", "echo 0 >/proc/sys/net/ipv4/vs/conntrack", "grep -H . /proc/sys/net/ipv4/vs/conntrack"},
	{"ip link del kube-ipvs0", "ip link del kube-ipvs0", "ip -o addr show dev kube-ipvs0"},
	{"ip addr flush dev kube-ipvs0", "ip addr flush dev kube-ipvs0", "ip -o addr show dev kube-ipvs0"},
}

// The agent audits the kernel only once an hour, so quick checks and kernel notifications must find the damage.
func TestRepairs(t *testing.T) {
	w := onWorld(t)
	for _, d := range damages {
		t.Run(d.name, func(t *testing.T) {
			show := func() []string {
				return lines(withoutTimes(w.node1.MustRun(t, "sh", "-ec", d.show+" || :"))) // the device may not exist
			}
			drifts := func() int { return strings.Count(w.agents[w.node1].Log(), "kernel state drifted") }
			w.restartAgent(t, w.node1, "--ipvs-sync-period", "1h") // the agent backs off when the same state is damaged repeatedly
			w.repaired(t, w.node1, w.nearService())
			before, had := show(), drifts()
			time.Sleep(time.Second)
			w.node1.MustRun(t, "sh", "-ec", d.script)
			cluster.Eventually(t, patience, "the damage is repaired", func() error {
				if drifts() == had {
					return errors.New("the agent detected no drift")
				}
				return differs(d.show, before, show())
			})
		})
	}
}

func withoutTimes(text string) string {
	var kept string
	for _, line := range lines(text) {
		if line[0] != '#' && line[0] != ':' {
			kept += fmt.Sprintln(line)
		}
	}
	return kept
}
