package kerneltest

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

func TestConformance(t *testing.T) {
	Conformance(t, func(*testing.T) Subject {
		f := New(Chains...)
		return Subject{Kernel: f, Admin: f}
	})
}

// world is a dump with objects of every kind.
const world = `sysctl -w net/ipv4/ip_forward=1
ip link add kube-ipvs0 type dummy
ipset create KIPVS-4-CLUSTER-IP hash:ip,port family inet maxelem 1024
ipset create KIPVS-4-HAIRPIN hash:ip,port,ip family inet maxelem 1024
ipset create KIPVS-4-SOURCES hash:ip,port,net family inet maxelem 1024
ipset create KIPVS-6-VIP hash:ip family inet6 maxelem 10
ipset create KIPVS-OLD hash:ip comment family inet maxelem 65536
ipset create other hash:ip family inet maxelem 65536
iptables -t nat -N KUBE-MARK-MASQ
iptables -t nat -N KUBE-SERVICES
iptables -t filter -N CNI-FORWARD
iptables -t nat -A KUBE-MARK-MASQ -j MARK --or-mark 0x4000 # masquerade when leaving
iptables -t nat -A KUBE-SERVICES -m set --match-set KIPVS-4-CLUSTER-IP dst,dst -j KUBE-MARK-MASQ # client is not a pod
iptables -t nat -A PREROUTING -j KUBE-SERVICES # Services
iptables -t filter -A FORWARD -m comment --comment "not ours # at all" -j CNI-FORWARD
ip6tables -t filter -A INPUT -j ACCEPT
ipvsadm --set 900 120 60
ipvsadm -A -t 10.96.0.1:443 -s rr
ipvsadm -a -t 10.96.0.1:443 -r 192.0.2.1:6443 -m -w 1 # active 7 inactive 2 persistent 1
ipvsadm -a -t 10.96.0.1:443 -r 192.0.2.2:6443 -m -w 0 -x 20 -y 10
ipvsadm -A -u 10.96.0.10:53 -s rr -o
ipvsadm -A -t 10.96.0.20:80 -s mh -p 10800 -M 255.255.255.0 -b mh-fallback,mh-port
ipvsadm -A -t 192.0.2.9:80 -s wlc -b flag-3
ipvsadm -a -t 192.0.2.9:80 -r 198.51.100.1:80 -g -w 3
ipvsadm -A --sctp-service [fd00:10:96::1]:36412 -s sh -p 360 -M 64 -b sh-port
ipvsadm -a --sctp-service [fd00:10:96::1]:36412 -r [fd00:10:244::1]:36412 -m -w 2147483647
ipset add KIPVS-4-CLUSTER-IP 10.96.0.1,tcp:443
ipset add KIPVS-4-CLUSTER-IP 10.96.0.10,udp:53
ipset add KIPVS-4-HAIRPIN 192.0.2.1,tcp:6443,192.0.2.1
ipset add KIPVS-4-SOURCES 10.96.0.1,tcp:443,198.51.100.0/24
ipset add KIPVS-4-SOURCES 10.96.0.1,tcp:443,203.0.113.7
ipset add KIPVS-6-VIP fd00:10:96::1
ip addr add 10.96.0.1/32 dev kube-ipvs0
ip route add local 10.96.0.1/32 dev kube-ipvs0 table local proto 117
ip route add local 10.96.0.2/32 dev kube-ipvs0 table local proto 117
ip addr add fd00:10:96::1/128 dev kube-ipvs0
`

func TestDumpRoundTrip(t *testing.T) {
	f, err := parseDump(world)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(world, f.Dump()); diff != "" {
		t.Errorf("dump (-want +have):\n%s", diff)
	}
	again := MustParseDump(f.Dump())
	if diff := Diff(f.State(), again.State()); diff != "" {
		t.Errorf("state (-want +have):\n%s", diff)
	}
}

func TestParseDumpRefuses(t *testing.T) {
	for _, text := range []string{
		"reboot",
		"ip addr add 10.0.0.1/32 dev kube-ipvs0", // no device
		"ip link add eth0 type dummy",
		"ip link add kube-ipvs0 type dummy up",
		"sysctl -w net/ipv4/nosuch=1",
		"sysctl -w net/ipv4/ip_forward",
		"ipset create A hash:ip family inet7 maxelem 1",
		"ipset create A hash:ip family inet maxelem many",
		"ipset add A 10.0.0.1",
		"ipset create A hash:ip,port,net family inet maxelem 9\nipset add A 10.0.0.1,tcp:80,0.0.0.0/0",
		"ipset create A hash:ip,port,net family inet maxelem 9\nipset add A 10.0.0.1,tcp:80,10.0.0.1/8",
		"ipvsadm -A -t 10.0.0.1:80 -s nosuch",
		"ipvsadm --set 900 120",
		"ipvsadm -A -t 10.0.0.1:80 -s rr -x",
		"ipvsadm -A -t 10.0.0.1:80 -s rr -b much",
		"ipvsadm -A -f 1 -s rr",
		"ipvsadm -A -t 10.0.0.1:80 -s rr -p 60 -M 255.0.255.0",
		"ipvsadm -A -t 10.0.0.1:80 -s rr -p 60 -M 24",
		"ipvsadm -a -t 10.0.0.1:80 -r 10.0.0.2:80 -m -w 1",
		"iptables -t nat -A NOSUCH -j ACCEPT",
		"iptables -t nosuch -N KUBE-X",
		`iptables -t nat -N " "`,
		"iptables -t nat -D PREROUTING -j ACCEPT",
		"iptables -t nat -A PREROUTING -m set --match-set nosuch dst -j ACCEPT",
		`iptables -t nat -A PREROUTING -m comment --comment "open`,
	} {
		if _, err := parseDump(text); err == nil {
			t.Errorf("%s: accepted", text)
		}
	}
}

var created = regexp.MustCompile(`(?:link add|ipset create|-N|ipvsadm -A (?:-t|-u|--sctp-service)) (\S+)`)

// small splits world into small dumps. Each contains one line of world, and the lines that create the objects it refers to.
func small() []string {
	var dumps []string
	makers := map[string]string{}
	for line := range strings.Lines(world) {
		dump := ""
		for _, word := range strings.Fields(line) {
			dump += makers[word]
		}
		dumps = append(dumps, dump+line)
		if m := created.FindStringSubmatch(line); m != nil {
			makers[m[1]] = line
		}
	}
	return dumps
}

func TestSmallDumps(t *testing.T) {
	for _, text := range small() {
		if _, err := parseDump(text); err != nil {
			t.Errorf("%v:\n%s", err, text)
		}
	}
}

// The seeds are small, because the fuzzer minimizes each interesting input, and the number of runs grows with the square of the input's
// length. With world as the seed, it tried only two inputs in 15 seconds.
func FuzzParseDump(f *testing.F) {
	for _, text := range small() {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		fake, err := parseDump(text)
		if err != nil {
			return
		}
		again, err := parseDump(fake.Dump())
		if err != nil {
			t.Fatalf("parsing the fake's own dump: %v\n%s", err, fake.Dump())
		}
		if diff := cmp.Diff(fake.Dump(), again.Dump()); diff != "" {
			t.Error(diff)
		}
	})
}

func apply(f *Fake, list ...kernel.Op) []error { return f.Apply(context.Background(), list) }

func TestFaults(t *testing.T) {
	f := New()
	f.SetFaults(Faults{Probability: 0.5, Seed: 1})
	failed, lost := 0, 0
	for i := range 200 {
		s := plain(numbered(i))
		if err := apply(f, op(kernel.Create, s))[0]; err == nil {
			continue
		}
		failed++
		if _, ok := f.State().Servers[s.Key]; ok {
			lost++
		}
	}
	if failed < 70 || failed > 130 || lost < failed/4 || lost > 3*failed/4 {
		t.Errorf("%d of 200 operations failed, %d of them after taking effect", failed, lost)
	}
	f.SetFaults(Faults{Probability: 1, Errors: []error{syscall.EIO}})
	if _, err := f.Read(context.Background()); !errors.Is(err, syscall.EIO) {
		t.Errorf("read: %v", err)
	}
	f.SetFaults(Faults{})
	if _, err := f.Read(context.Background()); err != nil {
		t.Errorf("read without faults: %v", err)
	}
}

func TestFailNext(t *testing.T) {
	f := New()
	key, other := tcp("10.96.0.1:80"), tcp("10.96.0.2:80")
	f.FailNext(kernel.KindServer, syscall.ENOMEM)
	f.LoseNext(kernel.KindServer, syscall.ETIMEDOUT)
	errs := apply(f, op(kernel.Create, kernel.DummyDevice{}), op(kernel.Create, plain(key)), op(kernel.Create, plain(other)),
		op(kernel.Create, plain(key)))
	for i, want := range []error{nil, syscall.ENOMEM, syscall.ETIMEDOUT, nil} {
		if !errors.Is(errs[i], want) {
			t.Errorf("operation %d: %v, want %v", i, errs[i], want)
		}
	}
	want := "ip link add kube-ipvs0 type dummy\nipvsadm -A -t 10.96.0.1:80 -s rr\nipvsadm -A -t 10.96.0.2:80 -s rr\n"
	if diff := cmp.Diff(want, f.Dump()); diff != "" {
		t.Error(diff)
	}
	f.FailNextRead(syscall.EINTR)
	if _, err := f.Read(context.Background()); !errors.Is(err, syscall.EINTR) {
		t.Errorf("read: %v", err)
	}
}

func TestCrash(t *testing.T) {
	f := New()
	f.CrashAfter(2)
	all := creates(kernel.DummyDevice{}, plain(tcp("10.96.0.1:80")), plain(tcp("10.96.0.2:80")))
	errs := apply(f, all...)
	if errs[0] != nil || !errors.Is(errs[1], errCrashed) || !errors.Is(errs[2], errCrashed) {
		t.Errorf("errors: %v", errs)
	}
	if _, err := f.Read(context.Background()); !errors.Is(err, errCrashed) {
		t.Errorf("read after the crash: %v", err)
	}
	if !f.Restart() || f.Restart() {
		t.Error("Restart did not report exactly one crash")
	}
	if diff := cmp.Diff("ip link add kube-ipvs0 type dummy\nipvsadm -A -t 10.96.0.1:80 -s rr\n", f.Dump()); diff != "" {
		t.Error(diff)
	}
	if err := apply(f, all[2])[0]; err != nil {
		t.Errorf("after the restart: %v", err)
	}
}

func TestIncompleteDump(t *testing.T) {
	f := MustParseDump(world)
	key := tcp("10.96.0.1:443")
	f.DumpMisses(key)
	servers := func() int {
		s, err := f.Read(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		return len(s.Servers)
	}
	found, err := f.Lookup(context.Background(), []kernel.ServerKey{key})
	if err != nil || len(found) != 1 {
		t.Errorf("lookup: %v, %v", found, err)
	}
	if first, second := servers(), servers(); first != 4 || second != 5 {
		t.Errorf("%d servers, then %d", first, second)
	}
}

func TestHookAndCounts(t *testing.T) {
	f := New()
	var seen []string
	f.OnOp(func(o kernel.Op, err error) {
		seen = append(seen, o.String()+": "+meaning(err)+": "+strings.TrimSpace(f.Dump()))
	})
	a := bound(ip4(96, 1))
	apply(f, creates(a, kernel.DummyDevice{}, a)...)
	want := []string{
		"ip addr add 10.96.0.1/32 dev kube-ipvs0: does not exist: ",
		"ip link add kube-ipvs0 type dummy: done: ip link add kube-ipvs0 type dummy",
		"ip addr add 10.96.0.1/32 dev kube-ipvs0: done: ip link add kube-ipvs0 type dummy\n" +
			"ip addr add 10.96.0.1/32 dev kube-ipvs0",
	}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Error(diff)
	}
	if _, err := f.Lookup(context.Background(), []kernel.ServerKey{tcp("10.96.0.1:80")}); err != nil {
		t.Error(err)
	}
	counts := Counts{
		Lookups: 1, LookedUp: 1, Batches: 1,
		Ops: map[kernel.Kind]int{kernel.KindAddress: 2, kernel.KindDevice: 1},
	}
	if diff := cmp.Diff(counts, f.TakeCounts()); diff != "" {
		t.Error(diff)
	}
	if n := f.TakeCounts().Writes(); n != 0 {
		t.Errorf("%d writes were counted twice", n)
	}
}

func TestLacks(t *testing.T) {
	f := New()
	delete(f.sysctls, "net/ipv4/vs/conntrack")
	f.LacksScheduler("mh")
	s := plain(tcp("10.96.0.1:80"))
	s.Scheduler = "mh"
	errs := apply(f, op(kernel.Ensure, kernel.SysctlSetting{Name: "net/ipv4/vs/conntrack", Value: "1"}), op(kernel.Create, s))
	if errs[0] == nil || !errors.Is(errs[1], kernel.ErrUnavailable) {
		t.Errorf("errors: %v", errs)
	}
	f.Fixes("net/ipv4/ip_forward", true)
	forward := kernel.SysctlSetting{Name: "net/ipv4/ip_forward", Value: "1"}
	if err := apply(f, op(kernel.Ensure, forward))[0]; !errors.Is(err, kernel.ErrUnavailable) {
		t.Errorf("a read-only sysctl: %v", err)
	}
	if _, ok := f.State().Sysctls["net/ipv4/vs/conntrack"]; ok {
		t.Error("the sysctl exists")
	}
}

func TestForeignRuleKeepsTheSetInUse(t *testing.T) {
	f := New()
	s := setNamed("A")
	apply(f, op(kernel.Create, s))
	if err := f.AppendRule(inet.IPv4, input, "-m", "set", "--match-set", s.Name, "src", "-j", "DROP"); err != nil {
		t.Fatal(err)
	}
	if err := f.DestroySet(s.Name); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("destroy: %v", err)
	}
}
