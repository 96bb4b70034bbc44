package inspect

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/debian"
	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/upstream"
	"github.com/kube-ipvs/kube-ipvs/internal/doctor"
	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/finding"
)

type firewallProgram struct {
	name              string // part of the names of sockets, which have at most 107 bytes
	daemon, configure string
	names             []string // chains and rules of the program, of which doctor names one
}

func firewallPrograms() []firewallProgram {
	const (
		firewalld = "dbus-daemon --system --nofork --nopidfile 2>/dev/null & firewalld --nofork --nopid"
		running   = "firewall-cmd --state && "
		dockerd   = "dockerd --storage-driver=vfs"
		started   = "docker version && "
		trusted   = running + "for pod in here also client; do firewall-cmd --zone=trusted --change-interface=pod-$pod; done"
	)
	return []firewallProgram{
		{"no program", "", "", nil},
		{"ufw", "", "ufw allow ssh && ufw --force enable", []string{"ufw-", "-P INPUT DROP", "-P FORWARD DROP"}},
		{
			"ufw that allows pods", "", "ufw allow ssh && ufw allow from 10.244.0.0/16 && ufw allow from fd00:10:244::/48 && ufw default allow routed && ufw --force enable",
			[]string{"ufw-", "-P INPUT DROP"},
		},
		{
			"ufw with a rule for routed packets", "",
			"ufw default allow incoming && ufw route allow from 10.244.0.0/16 && ufw route reject to any port 8080 proto tcp && ufw --force enable",
			[]string{"ufw-", "-P FORWARD DROP"},
		},
		{
			"ufw that rejects and logs", "",
			"ufw limit ssh && ufw logging full && ufw default reject incoming && ufw allow in on eth0 to any port 80 proto tcp && ufw --force enable",
			[]string{"ufw-", "-P INPUT"},
		},
		{"firewalld", firewalld, running + "true", []string{"firewalld"}},
		{"firewalld that trusts pods", firewalld, trusted, []string{"firewalld"}},
		{
			"firewalld with a rich rule", firewalld,
			trusted + " && firewall-cmd --zone=trusted --add-rich-rule='rule family=ipv4 destination address=" + plainIP + " reject'",
			[]string{"firewalld"},
		},
		{
			"firewalld that trusts addresses", firewalld,
			running + "for net in 10.244.0.0/16 fd00:10:244::/48; do firewall-cmd --zone=trusted --add-source=$net; done && " +
				"firewall-cmd --add-service=http && firewall-cmd --add-masquerade",
			[]string{"firewalld"},
		},
		{
			"firewalld with an ipset and a policy", firewalld,
			running + "firewall-cmd --permanent --new-ipset=them --type=hash:net && firewall-cmd --permanent --ipset=them --add-entry=198.51.100.0/24 && " +
				"firewall-cmd --permanent --zone=drop --add-source=ipset:them && firewall-cmd --permanent --set-target=ACCEPT && " +
				"firewall-cmd --permanent --new-policy=pods && firewall-cmd --permanent --policy=pods --add-ingress-zone=ANY && " +
				"firewall-cmd --permanent --policy=pods --add-egress-zone=HOST && firewall-cmd --permanent --policy=pods --set-target=CONTINUE && " +
				"firewall-cmd --permanent --policy=pods --add-rich-rule='rule family=ipv6 port port=80 protocol=tcp drop' && firewall-cmd --reload",
			[]string{"firewalld"},
		},
		{"firewalld that panics", firewalld, running + "firewall-cmd --panic-on", []string{"firewalld"}},
		{
			"firewalld with a direct rule", firewalld, trusted + " && firewall-cmd --direct --add-rule ipv4 filter INPUT 0 -p tcp --dport 80 -j DROP",
			[]string{"--dport 80 -j DROP"},
		},
		{
			"firewalld with iptables", "sed -i s/^FirewallBackend=.*/FirewallBackend=iptables/ /etc/firewalld/firewalld.conf; " + firewalld,
			running + "true", []string{"INPUT", "FORWARD", "IN_public", "FWD"},
		},
		{"docker", dockerd, started + "true", []string{"DOCKER", "-P FORWARD DROP"}},
		{"docker with a rule of the operator", dockerd, started + "iptables -I DOCKER-USER -p tcp --sport 8080 -j DROP", []string{"DOCKER"}},
		{"docker with a rule against some endpoints", dockerd, started + "iptables -I DOCKER-USER -s 10.244.2.0/24 -j DROP", []string{"DOCKER"}},
		{"docker without iptables", dockerd + " --iptables=false", started + "true", nil},
	}
}

// TestFirewallPrograms runs Debian's ufw, firewalld and docker on the node. explain must predict what every client gets, and
// doctor must name a rule of the program if a path from a pod or from the node no longer works.
func TestFirewallPrograms(t *testing.T) {
	var before map[string]explain.Verdict
	for _, c := range firewallPrograms() {
		t.Run(c.name, func(t *testing.T) {
			s := newStage(t)
			if c.configure != "" {
				s.runProgram(t, c.daemon, c.configure)
			}
			got, counts := s.comparePaths(t)
			if before == nil {
				before = got
			}
			blocked := []string{}
			for path := range before {
				if before[path] != got[path] && !strings.HasPrefix(path, s.outside.Name) {
					blocked = append(blocked, path)
				}
			}
			slices.Sort(blocked)
			t.Logf("%d paths, by verdict %v; blocked inside the cluster: %q", len(got), counts, blocked)
			if unclear := counts[explain.Unclear] + counts[explain.Depends]; unclear*10 > len(got) {
				t.Errorf("%d of %d paths are unclear", unclear, len(got))
			}
			s.checkDoctor(t, blocked, c.names)
		})
	}
}

// runProgram runs the daemon and the shell command that configures the firewall in the node's network namespace, with a
// root directory that contains the programs.
func (s *stage) runProgram(t *testing.T, daemon, configure string) {
	t.Helper()
	checkout, err := upstream.Root()
	if err != nil {
		t.Fatal(err)
	}
	tree, err := debian.Firewalls(checkout)
	if err != nil {
		t.Fatal(err)
	}
	root := t.TempDir()
	mount := func(source, target, kind string, flags uintptr, data string) {
		if err := unix.Mount(source, filepath.Join(root, target), kind, flags, data); err != nil {
			t.Fatalf("mount %s: %v", target, err)
		}
		t.Cleanup(func() { _ = unix.Unmount(filepath.Join(root, target), unix.MNT_DETACH) })
	}
	mount("tmpfs", "", "tmpfs", 0, "")
	s.node.MustRun(t, "mkdir", root+"/upper", root+"/work", root+"/root")
	mount("overlay", "root", "overlay", 0, fmt.Sprintf("lowerdir=%s,upperdir=%[2]s/upper,workdir=%[2]s/work", tree, root))
	for _, dir := range []string{"proc", "sys", "dev"} {
		mount("/"+dir, filepath.Join("root", dir), "", unix.MS_BIND|unix.MS_REC, "")
	}
	command := func(shell string) cluster.Command {
		return cluster.Command{
			Args: []string{"chroot", filepath.Join(root, "root"), "sh", "-c", shell}, Env: []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"},
		}
	}
	if daemon != "" {
		process, err := s.node.StartCommand(command(daemon))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			process.Kill()
			if t.Failed() {
				t.Logf("%s", process.Log())
			}
		})
	}
	cluster.Eventually(t, patience, configure, func() error {
		_, err := s.node.RunCommand(command(configure))
		return err
	})
	cluster.Eventually(t, patience, "the agent repairs rules that the program deleted", func() error {
		for _, service := range []string{"plain", "plain6"} {
			for _, e := range runJSON[explanations](t, s, "explain", "default/"+service, "--from", clientAddr(s.node.Host, service).String()).Items {
				if e.Verdict == explain.Differs {
					return fmt.Errorf("%v", e.Reasons)
				}
			}
		}
		return nil
	})
}

// comparePaths connects each client to each kind of Service, several times, and compares the results with explain's verdict.
func (s *stage) comparePaths(t *testing.T) (got map[string]explain.Verdict, counts map[explain.Verdict]int) {
	t.Helper()
	got, counts = map[string]explain.Verdict{}, map[explain.Verdict]int{}
	for _, service := range []string{"plain", "empty", "local", "ranged", "far", "plain6", "local6", "far6"} {
		for _, from := range []*cluster.Host{s.client.Host, s.outside, s.node.Host} {
			at := clientAddr(from, service)
			for _, e := range runJSON[explanations](t, s, "explain", "default/"+service, "--from", at.String()).Items {
				path := fmt.Sprintf("%s to %s", from.Name, e.Address)
				answered, last := 0, ""
				const tries = 6 // twice the number of endpoints
				for range tries {
					reply := from.Probe(cluster.TCP, e.Address.String(), cluster.FromAddr(at), cluster.Within(time.Second/2))
					if last = fmt.Sprint(reply); reply.Outcome == cluster.Answered {
						answered++
					}
				}
				got[path] = map[int]explain.Verdict{0: explain.Stops, tries: explain.Passes}[answered]
				if got[path] == "" {
					got[path] = explain.Partly
				}
				counts[e.Verdict]++
				if e.Verdict != got[path] && e.Verdict != explain.Unclear && e.Verdict != explain.Depends {
					t.Errorf("%s: explain predicts %s because of %v, but of %d requests %d were answered; the last: %s", path, e.Verdict, e.Reasons, tries, answered, last)
				}
			}
		}
	}
	return got, counts
}

// checkDoctor expects a finding that names a rule if paths are blocked, and otherwise no finding about a path.
func (s *stage) checkDoctor(t *testing.T, blocked, names []string) {
	t.Helper()
	report := runJSON[doctor.Report](t, s, "doctor")
	var named bool
	for _, f := range report.Findings {
		if f.Severity == finding.Notice {
			continue
		}
		named = named || slices.ContainsFunc(names, func(name string) bool { return strings.Contains(f.Problem, name) })
		if f.Severity == finding.Broken && f.Subject == "path" && len(blocked) == 0 {
			t.Errorf("all clients succeed, but doctor reports %+v", f)
		}
	}
	if len(blocked) > 0 && !named {
		t.Errorf("%q are blocked; doctor names none of %q: %+v", blocked, names, report.Findings)
	}
	t.Logf("doctor: %+v", report.Findings)
}
