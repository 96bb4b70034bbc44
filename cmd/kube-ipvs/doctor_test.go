//go:build linux

package main

import (
	"context"
	"os"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/doctor"
	"github.com/kube-ipvs/kube-ipvs/internal/explain"
	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/kerneltest"
	"github.com/kube-ipvs/kube-ipvs/internal/machine"
	"github.com/kube-ipvs/kube-ipvs/internal/preflight"
)

func TestDoctorCommand(t *testing.T) {
	s := newStageOf(t, "testdata/web") // no Service has a Problem
	args := append(withFlags("doctor"), "--status-socket", s.socket)
	host := healthyHost(t)
	s.Host = func(context.Context) doctor.Host { return host }
	s.Kernel = func(context.Context, machine.Look) *explain.Kernel { return commented(s.fake) }
	printedForms(t, s, "doctor-well", 0, args...)

	host["/proc/1/comm"] = "kube-proxy\n"
	printedForms(t, s, "doctor-warning", 1, args...)

	host["/proc/sys/net/ipv4/ip_forward"] = "0"
	missing := finding.New(finding.Broken, "kernel module ip_vs_mh", "missing", nil, "run `modprobe ip_vs_mh`")
	s.Check = func(context.Context, preflight.Needs) preflight.Result {
		return preflight.Result{Findings: []finding.Finding{missing}}
	}
	printedForms(t, s, "doctor-broken", 2, args...)
}

// healthyHost returns the files of a node that an agent has set up. It includes the ServiceAccount files of the agent's pod.
func healthyHost(t *testing.T) fakeHost {
	host := fakeHost{
		"/etc/os-release": "", "/proc/sys/net/ipv4/tcp_keepalive_time": "7200", "/proc/net/stat/arp_cache": "entries\n00000004\n",
		"/proc/net/route": "Iface\neth0\t00000000\t0102A8C0\t0003\t0\t0\t0\t00000000\n", "/proc/uptime": "60.5 60.5\n", "/proc/meminfo": "MemTotal: 100 kB\nMemAvailable: 60 kB\n",
		"/proc/sys/net/ipv4/neigh/default/gc_thresh3": "1024", "/proc/net/netstat": "TcpExt: IPReversePathFilter\nTcpExt: 0\n", "/proc/net/snmp": "", "/proc/net/dev": "",
	}
	for _, s := range compile.Base(compile.Config{Host: compile.Host{Families: inet.Families}, Settings: settingsOf(t).Compile()}).Sysctls {
		host["/proc/sys/"+s.Name] = s.Value
	}
	return host
}

// commented returns the kernel's state with the agent's comments in its rules, in the format of iptables.
func commented(fake *kerneltest.Fake) *explain.Kernel {
	k := explained(fake, compile.Config{})
	for _, rules := range k.Rules {
		for _, chain := range rules.Rules {
			for i := range chain {
				chain[i].Spec, chain[i].Tag = `-m comment --comment "kube-ipvs:0123456789 why" `+chain[i].Spec, "kube-ipvs:0123456789"
			}
		}
	}
	return k
}

func TestDoctorWithoutAgent(t *testing.T) {
	s := newMachine(t)
	out, _, status := s.call(t, append(withFlags("doctor"), "--status-socket", s.socket)...)
	if status != 2 || !strings.Contains(out, "no kube-ipvs agent responds") || !strings.Contains(out, "another proxy is running") {
		t.Errorf("status %d\n%s", status, out)
	}
	if _, stderr, status := s.call(t, append(withFlags("doctor", "-o", "table"), "--status-socket", s.socket)...); status != 2 || !strings.Contains(stderr, "text") {
		t.Errorf("wrong format: status %d, %s", status, stderr)
	}
}

func TestDoctorWithoutRoot(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root can open every socket; run this test as another user")
	}
	s := newStage(t)
	if err := os.Chmod(s.socket, 0); err != nil {
		t.Fatal(err)
	}
	out, stderr, status := s.call(t, append(withFlags("doctor"), "--status-socket", s.socket)...)
	if status != 3 || out != "" || !strings.Contains(stderr, "run the command as root") {
		t.Errorf("status %d, %s\n%s", status, stderr, out)
	}
}
