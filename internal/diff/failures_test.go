package diff_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

func skipsAfter(t *testing.T, w *diff.Target, have *kernel.State, p diff.Plan, fails string, skips []string) {
	t.Helper()
	failures := diff.NewFailures(w, have)
	var skipped []string
	failed := false
	for op := range p.All {
		err := failures.Blocks(op)
		switch {
		case op.String() == fails:
			failures.Add(op, errTest)
			failed = true
		case err != nil:
			if strings.Count(err.Error(), "skipped") != 1 {
				t.Errorf("%s: %v", op, err)
			}
			failures.Add(op, err)
			skipped = append(skipped, op.String())
		default:
			have.Advance(op)
		}
	}
	if !failed {
		t.Fatalf("%q is not in the plan", fails)
	}
	slices.Sort(skipped)
	if d := cmp.Diff(slices.Sorted(slices.Values(skips)), skipped, cmpopts.EquateEmpty()); d != "" {
		t.Errorf("skipped (-want +have):\n%s", d)
	}
}

// I8: if an operation on a guard fails, the operations that depend on it are skipped.
func TestFailuresOfGuards(t *testing.T) {
	const (
		allow    = "ipset add KIPVS-4-ALLOWED 203.0.113.1,tcp:80,198.51.100.0/24"
		forget   = "ipset del KIPVS-4-ALLOWED 203.0.113.1,tcp:80,198.51.100.0/24"
		guard    = "ipset add KIPVS-4-INSIDE-ONLY 203.0.113.1,tcp:80"
		guardDel = "ipset del KIPVS-4-INSIDE-ONLY 203.0.113.1,tcp:80"
		firewall = "ipset add KIPVS-4-FIREWALLED 203.0.113.1,tcp:80"
		wallDel  = "ipset del KIPVS-4-FIREWALLED 203.0.113.1,tcp:80"
		early    = "ipset add KIPVS-4-GUARDED 203.0.113.1,tcp:80"
		earlyDel = "ipset del KIPVS-4-GUARDED 203.0.113.1,tcp:80"
		whole    = "ipset add KIPVS-4-GUARDED-IP 203.0.113.1"
		wholeDel = "ipset del KIPVS-4-GUARDED-IP 203.0.113.1"
		add      = "ipvsadm -A -t 203.0.113.1:80 -s rr"
		dest     = "ipvsadm -a -t 203.0.113.1:80 -r 10.244.1.1:8080 -m -w 1"
		here     = "ipvsadm -a -t 203.0.113.1:80 -r 10.244.0.1:8080 -m -w 1"
		destDel  = "ipvsadm -d -t 203.0.113.1:80 -r 10.244.1.1:8080"
		open     = "ipset add KIPVS-4-EXTERNAL 203.0.113.1,tcp:80"
		bind     = "ip addr add 203.0.113.1/32 dev kube-ipvs0"
		release  = "ip addr del 203.0.113.1/32 dev kube-ipvs0"
		del      = "ipvsadm -D -t 203.0.113.1:80"
		unlist   = "ipset del KIPVS-4-VIP 203.0.113.1"
		unclaim  = "ipset del KIPVS-4-LEDGER 203.0.113.1,tcp:80"
		closed   = "ipset del KIPVS-4-EXTERNAL 203.0.113.1,tcp:80"
	)
	remote, local := guardedService("10.244.1.1", "node-b"), guardedService("10.244.0.1", compiletest.Node)
	local.SourceRanges = nil
	for _, test := range []struct {
		from, to *model.Service
		fails    string
		skips    []string
	}{
		{nil, remote, allow, nil}, // clients in the source range stay blocked, too, but nothing else depends on the entry
		{nil, remote, guard, []string{add, dest, open, bind}},
		{nil, remote, firewall, []string{add, dest, open, bind}},
		{nil, remote, early, []string{add, dest, open, bind}},
		{nil, remote, whole, []string{add, dest, open, bind}},
		{local, remote, guard, []string{dest}},
		{local, remote, early, []string{dest}},
		{local, remote, whole, []string{dest}},
		{remote, local, here, []string{guardDel, wallDel, earlyDel, wholeDel, forget}},
		{remote, local, destDel, []string{guardDel, wallDel, earlyDel, wholeDel, forget}},
		{remote, local, wallDel, []string{forget}},
		{remote, nil, release, []string{unlist, del, guardDel, wallDel, earlyDel, wholeDel, forget, unclaim}},
		{remote, nil, closed, []string{del, guardDel, wallDel, earlyDel, wholeDel, forget, unclaim}},
		{remote, nil, del, []string{guardDel, wallDel, earlyDel, wholeDel, forget, unclaim}},
	} {
		t.Run(test.fails, func(t *testing.T) {
			c := compiletest.Cluster(config4(), nil, compiletest.At())
			fake := newFake()
			id := model.ServiceID{Namespace: "default", Name: "web"}
			c.Update(map[model.ServiceID]*model.Service{id: test.from}, touchedNone())
			converge(t, fake, diff.NewTarget(c.Want()), read())
			c.Update(map[model.ServiceID]*model.Service{id: test.to}, touchedNone())
			have := fake.State()
			skipsAfter(t, diff.NewTarget(c.Want()), have, plan(diff.NewTarget(c.Want()), have, read()), test.fails, test.skips)
		})
	}
}

// I8: if an operation fails, the operations that depend on it are skipped.
func TestFailures(t *testing.T) {
	const (
		ledgerAdd = "ipset add KIPVS-4-LEDGER 10.96.0.1,tcp:80"
		seal      = "ipset add KIPVS-4-LEDGER 127.0.0.1,tcp:1"
		hairpin   = "ipset add KIPVS-4-HAIRPIN 10.244.0.1,tcp:8080,10.244.0.1"
		serverAdd = "ipvsadm -A -t 10.96.0.1:80 -s rr"
		destAdd   = "ipvsadm -a -t 10.96.0.1:80 -r 10.244.0.1:8080 -m -w 1"
		open      = "ipset add KIPVS-4-CLUSTER-IP 10.96.0.1,tcp:80"
		vipAdd    = "ipset add KIPVS-4-VIP 10.96.0.1"
		addrAdd   = "ip addr add 10.96.0.1/32 dev kube-ipvs0"
		addrDel   = "ip addr del 10.96.0.2/32 dev kube-ipvs0"
		closePort = "ipset del KIPVS-4-CLUSTER-IP 10.96.0.2,tcp:80"
		vipDel    = "ipset del KIPVS-4-VIP 10.96.0.2"
		serverDel = "ipvsadm -D -t 10.96.0.2:80"
		ledgerDel = "ipset del KIPVS-4-LEDGER 10.96.0.2,tcp:80"
		hairDel   = "ipset del KIPVS-4-HAIRPIN 10.244.0.2,tcp:8080,10.244.0.2"
	)
	creates := []string{ledgerAdd, serverAdd, destAdd, open, addrAdd}
	for _, test := range []struct {
		fails string
		skips []string
	}{
		{"sysctl -w net/ipv4/ip_forward=1", nil},
		{"ip link add kube-ipvs0 type dummy", []string{addrAdd}},
		{"ipset create KIPVS-4-LEDGER hash:ip,port family inet maxelem 1048576", append(slices.Clone(creates), seal, "iptables-restore IPv4 chains")},
		{"ipset create KIPVS-4-HAIRPIN hash:ip,port,ip family inet maxelem 1048576", []string{hairpin, "iptables-restore IPv4 chains", serverAdd, destAdd, open, addrAdd}},
		{"ipset create KIPVS-4-VIP hash:ip family inet maxelem 1048576", []string{vipAdd, "iptables-restore IPv4 chains", serverAdd, destAdd, open, addrAdd}},
		{"ipset create KIPVS-4-CLUSTER-IP hash:ip,port family inet maxelem 1048576", []string{"iptables-restore IPv4 chains", serverAdd, destAdd, open, addrAdd}},
		{"iptables-restore IPv4 chains", []string{serverAdd, destAdd, open, addrAdd}},
		{hairpin, nil},
		{ledgerAdd, []string{seal, serverAdd, destAdd, open, addrAdd}},
		{seal, nil},
		{serverAdd, []string{destAdd, open, addrAdd}},
		{destAdd, nil},
		{open, nil},
		{vipAdd, []string{addrAdd}},
		{addrAdd, nil},
		{addrDel, []string{vipDel, serverDel, ledgerDel}},
		{closePort, []string{serverDel, ledgerDel}},
		{vipDel, nil},
		{serverDel, []string{ledgerDel}},
		{ledgerDel, nil},
		{hairDel, nil},
	} {
		t.Run(test.fails, func(t *testing.T) {
			w, have, p := failurePlan(t, test.fails)
			skipsAfter(t, w, have, p, test.fails, test.skips)
		})
	}
}

// failurePlan returns a plan that creates 10.96.0.1. If the failing operation concerns 10.96.0.2, the plan also deletes 10.96.0.2.
// Otherwise, it starts from an empty kernel.
func failurePlan(t *testing.T, fails string) (*diff.Target, *kernel.State, diff.Plan) {
	fake := newFake()
	old := compile.NewCluster(config4())
	gone := compiletest.Service("old", "10.96.0.2", "10.244.0.2")
	old.Update(map[model.ServiceID]*model.Service{gone.ID: gone}, touchedNone())
	if strings.Contains(fails, "10.96.0.2") || strings.Contains(fails, "10.244.0.2") {
		converge(t, fake, diff.NewTarget(old.Want()), read())
	}
	c := compile.NewCluster(config4())
	web := compiletest.Service("web", "10.96.0.1", "10.244.0.1")
	c.Update(map[model.ServiceID]*model.Service{web.ID: web}, touchedNone())
	have := fake.State()
	p := plan(diff.NewTarget(c.Want()), have, read())
	if !slices.Contains(commands(p), fails) {
		t.Fatalf("no %q in\n%s", fails, text(p))
	}
	return diff.NewTarget(c.Want()), have, p
}

// An address is bound even if one of its virtual servers cannot be created, provided that another virtual server exists. Only the port of
// the missing server stays closed.
func TestOneServerOfAnAddressFails(t *testing.T) {
	web := compiletest.Service("web", "10.96.0.1", "10.244.0.1")
	web.Ports = append(web.Ports, model.ServicePort{Name: "https", Protocol: inet.TCP, Port: 443})
	w := diff.NewTarget(clusterOf(web).Want())
	have := newFake().State()
	p := plan(w, have, read())
	failures := diff.NewFailures(w, have)
	bind := opNamed(t, p, "ip addr add 10.96.0.1/32 dev kube-ipvs0")
	replaced := kernel.Op{Verb: kernel.Delete, Object: serverAt(tcp("10.96.0.1:81"))}
	if failures.Blocks(bind) == nil {
		t.Error("the address is bound although none of its virtual servers exists")
	}
	if failures.Blocks(replaced) == nil {
		t.Error("the last existing virtual server is deleted before another one is created")
	}
	have.Advance(kernel.Op{Verb: kernel.Create, Object: serverAt(tcp("10.96.0.1:443"))})
	for _, op := range []kernel.Op{bind, replaced} {
		if err := failures.Blocks(op); err != nil {
			t.Errorf("%s is skipped although one of the two virtual servers exists: %v", op, err)
		}
	}
}

// An incremental sync does not repair the base that all Services depend on, so the agent remembers a failure of the base. It forgets the
// failure of a single object.
func TestFailuresNext(t *testing.T) {
	w, have, p := failurePlan(t, "iptables-restore IPv4 chains")
	failures := diff.NewFailures(w, have)
	failures.Add(opNamed(t, p, "ipset create KIPVS-4-VIP hash:ip family inet maxelem 1048576"), errTest)
	failures.Add(opNamed(t, p, "iptables-restore IPv4 chains"), errTest)
	failures.Add(opNamed(t, p, "ipset add KIPVS-4-LEDGER 10.96.0.1,tcp:80"), errTest)
	next := failures.Next()
	if next.Blocks(opNamed(t, p, "ipset add KIPVS-4-VIP 10.96.0.1")) == nil {
		t.Error("an incremental sync writes to a missing set")
	}
	if next.Blocks(opNamed(t, p, "ipset add KIPVS-4-LEDGER 127.0.0.1,tcp:1")) != nil {
		t.Error("the failure of a single entry is still remembered")
	}
	if next.Blocks(opNamed(t, p, "ipvsadm -A -t 10.96.0.1:80 -s rr")) == nil {
		t.Error("an incremental sync creates a virtual server although the rules are missing")
	}
}

// An adopted virtual server is written only after it is in the ledger.
func TestAdoptionNeedsTheLedger(t *testing.T) {
	web := compiletest.Service("web", "10.96.0.1", "10.244.0.1")
	w := diff.NewTarget(clusterOf(web).Want())
	fake := start(t, diff.NewTarget(clusterOf().Want()))
	key := tcp("10.96.0.1:80")
	old := serverAt(key)
	old.Scheduler = "mh"
	must(t, fake.AddAddress(bound("10.96.0.1")))
	must(t, fake.AddServer(old))
	must(t, fake.FlushSet(ledger4))
	have := fake.State()
	p := plan(w, have, read())
	failures := diff.NewFailures(w, have)
	failures.Add(opNamed(t, p, "ipset add KIPVS-4-LEDGER 10.96.0.1,tcp:80"), errTest)
	for _, command := range []string{
		"ipset add KIPVS-4-LEDGER 127.0.0.1,tcp:1", "ipvsadm -E -t 10.96.0.1:80 -s rr",
		"ipvsadm -a -t 10.96.0.1:80 -r 10.244.0.1:8080 -m -w 1", "ipset add KIPVS-4-CLUSTER-IP 10.96.0.1,tcp:80",
	} {
		if failures.Blocks(opNamed(t, p, command)) == nil {
			t.Errorf("%s is not skipped", command)
		}
	}
}
