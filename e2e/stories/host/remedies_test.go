package host

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/internal/finding"
)

// remedy describes damage to a machine. finding is the subject that doctor reports.
type remedy struct {
	finding string
	damage  string
	// nftables is true for damage that matters only to the nftables data plane.
	nftables bool
	undo     string
}

// remedies covers every command in doctor's and preflight's remedies, except those that load kernel modules: the
// lab's kernel has no modules.
var remedies = []remedy{
	{finding: "kube-proxy's rules", damage: `
ipset create KUBE-CLUSTER-IP hash:ip,port
ipset create KUBE-6-IPVS-IPS hash:ip family inet6
iptables-nft -t nat -N KUBE-SVC-NPX46M4PTMTKRN6Y
iptables-nft -t nat -N KUBE-NODE-PORT
iptables-nft -t nat -A KUBE-NODE-PORT -m set --match-set KUBE-CLUSTER-IP dst,dst -j KUBE-SVC-NPX46M4PTMTKRN6Y
iptables-nft -t nat -A PREROUTING -m comment --comment "kubernetes service portals" -j KUBE-NODE-PORT
nft add table ip kube-proxy
nft add chain ip kube-proxy services '{ type nat hook prerouting priority 0; }'
nft add table ip6 kube-proxy`},
	{finding: "virtual servers", damage: `
ipvsadm -A -t 10.96.0.77:80 -s rr
sed 's/\bweb\b/taken/; s/service-name: web/service-name: taken/; s/10\.96\.0\.10/10.96.0.77/' \
	/etc/kube-ipvs/manifests/web.yaml >/etc/kube-ipvs/manifests/taken.yaml`, undo: `
rm /etc/kube-ipvs/manifests/taken.yaml
while ipvsadm -Sn | grep 10.96.0.77; do sleep 1; done`},
	{finding: "addresses", damage: `
ip addr add 192.0.2.9/32 dev kube-ipvs0
ipvsadm -A -t 192.0.2.9:80`},
	{finding: "local routes", damage: "ip route del local 10.96.0.10 dev kube-ipvs0 table local"},
	{finding: "IPv6", damage: "sysctl -w net.ipv6.conf.default.disable_ipv6=1"},
	{finding: "IPVS counters", damage: "sysctl -w net.ipv4.vs.run_estimation=0"},
	{finding: "idle connections", damage: "sysctl -w net.ipv4.tcp_keepalive_time=7200"},
	{finding: "kernel module br_netfilter", damage: `
echo "br_netfilter 32768 0 - Live 0x0" >/run/modules
mount --bind /run/modules /proc/modules`, undo: "rm /etc/modules-load.d/br_netfilter.conf"},
	{finding: "reverse path filter", damage: `
ip link add uplink.2 type dummy
ip addr add 192.168.51.12/24 dev uplink.2
ip link set uplink.2 up
ip route add default via 192.168.50.1
ip route add default via 192.168.51.1 metric 100
sysctl -w net/ipv4/conf/uplink.2/rp_filter=1 net.ipv4.conf.all.rp_filter=0`, undo: `
ip link del uplink.2
ip route del default`},
	// Only the initial network namespace has this sysctl, and the machine is in another namespace.
	{finding: "neighbor table of IPv4", damage: `
mkdir -p /run/neighbors/default
echo 3 >/run/neighbors/default/gc_thresh3
mount --bind /run/neighbors /proc/sys/net/ipv4/neigh
ip link add neighbors type bridge
ip link set neighbors up
ip addr add 192.168.60.1/24 dev neighbors
for n in 2 3 4; do ip neigh add 192.168.60.$n lladdr 02:00:00:00:00:0$n dev neighbors; done`, undo: "ip link del neighbors"},
	{finding: "FORWARD", nftables: true, damage: `
iptables -P FORWARD DROP
ip6tables -P FORWARD DROP`, undo: `
iptables -P FORWARD ACCEPT
ip6tables -P FORWARD ACCEPT
iptables -F FORWARD
ip6tables -F FORWARD`},
}

// TestRemedies damages a machine and runs the command that doctor prints. The finding must disappear, and the same
// virtual server must still serve the Service.
func TestRemedies(t *testing.T) {
	m := boot(t)
	m.install(t)
	for _, nftables := range []bool{false, true} {
		if nftables {
			m.run(t, "sh", "-ec", "systemctl stop kube-ipvs; kube-ipvs cleanup; echo 'dataPlane: nftables' >>/etc/kube-ipvs/config.yaml; systemctl start kube-ipvs")
			m.awaitService(t)
		}
		for _, r := range remedies {
			if r.nftables == nftables {
				t.Run(r.finding, func(t *testing.T) { m.remedy(t, r) })
			}
		}
	}
}

func (m *machine) remedy(t *testing.T, r remedy) {
	mounts := m.withMounts(t)
	before, served := subjects(mounts.examine(t)), m.served(t)
	mounts.run(t, "sh", "-ec", r.damage)
	var commands []string
	cluster.Eventually(t, patience, "doctor finds the damage", func() error {
		found := mounts.examine(t)
		i := slices.IndexFunc(found, func(f finding.Finding) bool { return f.Subject == r.finding })
		if i < 0 {
			return fmt.Errorf("only %v", subjects(found))
		}
		commands = found[i].Commands()
		return nil
	})
	if len(commands) == 0 {
		t.Fatal("the finding's remedy has no command")
	}
	for _, command := range commands {
		t.Logf("%s\n%s", command, mounts.run(t, "sh", "-ec", command))
	}
	cluster.Eventually(t, patience, "the damage is repaired", func() error {
		left := subjects(mounts.examine(t))
		if slices.Contains(left, r.finding) {
			return errors.New("doctor still reports the finding")
		}
		for _, subject := range left {
			if !slices.Contains(before, subject) && subject != "drift" {
				return fmt.Errorf("doctor now reports %s", subject)
			}
		}
		return nil
	})
	now := m.served(t)
	for line := range strings.Lines(served) {
		if !strings.Contains(now, line) {
			t.Errorf("the agent's objects changed from\n%s\nto\n%s", served, now)
		}
	}
	if r.undo != "" {
		mounts.run(t, "sh", "-ec", r.undo)
	}
}

// withMounts runs commands in a new mount namespace, so that damage to files in /proc disappears with it.
func (m *machine) withMounts(t *testing.T) *machine {
	t.Helper()
	id := strings.TrimSpace(m.run(t, "sh", "-c", "unshare --mount sleep infinity >/dev/null 2>&1 & echo $!"))
	t.Cleanup(func() { m.run(t, "kill", id) })
	return &machine{process: m.process, enter: []string{"nsenter", "-t", id, "--mount", "--root", "--wdns=/", "--"}}
}

func (m *machine) served(t *testing.T) string {
	t.Helper()
	return m.run(t, "sh", "-c", "ipvsadm -Sn; { iptables-save; ip6tables-save; } | grep kube-ipvs:; nft -s list table inet kube-ipvs 2>/dev/null; true")
}

func (m *machine) examine(t *testing.T) []finding.Finding {
	t.Helper()
	out, _ := m.try("kube-ipvs", "doctor", "-o", "json") // the exit status is doctor's verdict
	var report struct{ Findings []finding.Finding }
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return report.Findings
}

func subjects(found []finding.Finding) (all []string) {
	for _, f := range found {
		all = append(all, f.Subject)
	}
	return all
}
