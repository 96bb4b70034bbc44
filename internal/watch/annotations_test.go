package watch

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

var update = flag.Bool("update", false, "write docs/annotations.md anew")

// annotated is a Service with affinity, a UDP port and annotations of ours, whose names stand without their prefix.
func annotated(annotations map[string]string) *v1.Service {
	return testService("web", func(s *v1.Service) {
		s.Annotations = map[string]string{}
		for key, value := range annotations {
			if !strings.Contains(key, "/") {
				key = annotationPrefix + key
			}
			s.Annotations[key] = value
		}
		s.Spec.SessionAffinity = v1.ServiceAffinityClientIP
		s.Spec.Ports = append(s.Spec.Ports, v1.ServicePort{Name: "dns", Protocol: v1.ProtocolUDP, Port: 53})
	})
}

type written = map[string]string

func TestServiceAnnotations(t *testing.T) {
	for _, c := range []struct {
		annotations written
		want        model.Balancing
	}{
		{written{}, model.Balancing{}},
		{written{"scheduler": "lc"}, model.Balancing{Scheduler: "lc"}},
		{written{"scheduler": " wlc "}, model.Balancing{Scheduler: "wlc"}},
		{written{"scheduler": "sh", "scheduler-flags": "sh-port, sh-fallback"}, model.Balancing{Scheduler: "sh", Flags: 3, FlagsSet: true}},
		{written{"scheduler": "mh", "scheduler-flags": "mh-port"}, model.Balancing{Scheduler: "mh", Flags: 2, FlagsSet: true}},
		{written{"scheduler": "mh", "scheduler-flags": "none"}, model.Balancing{Scheduler: "mh", FlagsSet: true}},
		{written{"scheduler": "rr", "scheduler-flags": "none"}, model.Balancing{Scheduler: "rr", FlagsSet: true}},
		{written{"scheduler": "sh", "scheduler-flags": "flag-1,flag-2"}, model.Balancing{Scheduler: "sh", Flags: 3, FlagsSet: true}},
		{written{"kube-router.io/service.scheduler": "sh", "kube-router.io/service.schedflags": "sh-port"},
			model.Balancing{Scheduler: "sh", Flags: 2, FlagsSet: true}},
		{written{"kube-router.io/service.scheduler": "sh", "scheduler": "lc"}, model.Balancing{Scheduler: "lc"}},
		{written{"affinity-prefix-ipv4": "24"}, model.Balancing{ClientBits4: 24}},
		{written{"affinity-ports": "all"}, model.Balancing{AllPorts: true}},
		{written{"affinity-ports": "each"}, model.Balancing{}},
		{written{"one-packet": "true"}, model.Balancing{OnePacket: true}},
		{written{"one-packet": "false"}, model.Balancing{}},
		{written{"max-connections": "4294967295", "resume-connections": "4294967294"},
			model.Balancing{MaxConnections: 1<<32 - 1, ResumeConnections: 1<<32 - 2}},
		{written{"weight": "0"}, model.Balancing{Weights: model.Weights{DefaultSet: true}}},
		{written{"weight": "2147483647"}, model.Balancing{Weights: model.Weights{Default: model.MaxWeight, DefaultSet: true}}},
		{written{"weight-by-zone": "b=1,a = 10", "weight-by-node": "n=0", "weight-by-pod": "web-0=5"}, model.Balancing{Weights: model.Weights{
			Zones: []model.NamedWeight{{Name: "a", Weight: 10}, {Name: "b", Weight: 1}},
			Nodes: []model.NamedWeight{{Name: "n"}},
			Pods:  []model.NamedWeight{{Name: "default/web-0", Weight: 5}},
		}}},
		{written{"slow-start": "90"}, model.Balancing{SlowStart: 90 * time.Second}},
		{written{"slow-start": "1h"}, model.Balancing{SlowStart: time.Hour}},
	} {
		r, err := newTestConverter().convert(annotated(c.annotations), "")
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(c.want, r.service.Balancing); d != "" || len(r.problems) > 0 {
			t.Errorf("%v: problems %v, (-want +have)\n%s", c.annotations, r.problems, d)
		}
	}
}

func TestAffinityTimeoutAnnotation(t *testing.T) {
	for value, want := range map[string]time.Duration{
		"10m": 10 * time.Minute, "1": time.Second, "744h": 31 * 24 * time.Hour, // these override
		"0": 3 * time.Hour, "744h1s": 3 * time.Hour, "1500ms": 3 * time.Hour, // these do not
	} {
		r, _ := newTestConverter().convert(annotated(written{"affinity-timeout": value}), "")
		bad := want == 3*time.Hour
		if r.service.AffinityTimeout != want || r.service.Balancing.AffinitySet == bad || len(r.problems) > 0 != bad {
			t.Errorf("%s: %s, by annotation %t, problems %v", value, r.service.AffinityTimeout, r.service.Balancing.AffinitySet, r.problems)
		}
	}
}

// A bad annotation is a Problem that names it, its value and what is valid; it is as if it were not there.
func TestBadServiceAnnotations(t *testing.T) {
	for _, c := range []struct{ key, value, says string }{
		{"scheduler", "fastest", "must be one of rr, wrr, lc, wlc, fo, ovf, lblc, lblcr, dh, sh, mh, sed, nq, twos"},
		{"scheduler", "", "must be one of"},
		{"scheduler", "RR", "must be one of"},
		{"scheduler", "rr,lc", "must be one of"},
		{"kube-router.io/service.scheduler", "fastest", "must be one of"},
		{"scheduler-flags", "sh-port", "needs a valid annotation kube-ipvs.io/scheduler beside it"},
		{"scheduler-flags", "none", "needs a valid annotation kube-ipvs.io/scheduler beside it"},
		{"scheduler-flags", "flag-1", "needs a valid annotation"},
		{"kube-router.io/service.schedflags", "flag-1", "needs a valid annotation"},
		{"affinity-timeout", "-5s", "must be a duration of whole seconds from 1s to 744h"},
		{"affinity-timeout", "99999999999999999999", "must be a duration"},
		{"affinity-timeout", "1m,2m", "must be a duration"},
		{"affinity-prefix-ipv4", "64", "must be a whole number from 1 to 32"},
		{"affinity-prefix-ipv4", "/24", "must be a whole number from 1 to 32"},
		{"affinity-prefix-ipv4", "255.255.255.0", "must be a whole number from 1 to 32"},
		{"affinity-prefix-ipv6", "0", "must be a whole number from 1 to 128"},
		{"affinity-prefix-ipv6", "64", "is for IPv6, of which this Service has no address"},
		{"affinity-ports", "80,443", "must be each or all"},
		{"affinity-ports", "true", "must be each or all"},
		{"one-packet", "yes", "must be true or false"},
		{"max-connections", "0", "must be a whole number from 1 to 4294967295"},
		{"max-connections", "4294967296", "must be a whole number from 1 to 4294967295"},
		{"max-connections", "1,2", "must be a whole number"},
		{"resume-connections", "10", "must be less than the annotation kube-ipvs.io/max-connections"},
		{"weight", "2147483648", "must be a whole number from 0 to 2147483647"},
		{"weight", "-1", "must be a whole number"},
		{"weight", "5%", "must be a whole number"},
		{"weight", "1,2", "must be a whole number"},
		{"weight-by-zone", "zone-a", `"zone-a" must be name=weight`},
		{"weight-by-zone", "=5", "must be name=weight"},
		{"weight-by-zone", "a=1,", "must be name=weight"},
		{"weight-by-node", "a=1,a=2", `"a" must be named once only`},
		{"weight-by-node", "a=x", `the weight of "a": must be a whole number from 0 to 2147483647`},
		{"weight-by-pod", "other/web-0=1", "a name without its namespace"},
		{"slow-start", "1h1s", "must be a duration of whole seconds from 1s to 1h"},
		{"slow-start", "", "must be a duration"},
		{"canary", "5%", "valid after the slash: scheduler, scheduler-flags, affinity-timeout"},
	} {
		r, err := newTestConverter().convert(annotated(written{c.key: c.value}), "")
		if err != nil {
			t.Fatal(err)
		}
		if len(r.problems) != 1 {
			t.Errorf("%s %q: problems %v", c.key, c.value, r.problems)
			continue
		}
		p := r.problems[0]
		if !strings.HasSuffix(p.Field, "/"+strings.TrimPrefix(c.key, "kube-router.io/")+"]") || p.Value != c.value ||
			!strings.Contains(p.Message, c.says) || !strings.Contains(p.Message, "without effect") {
			t.Errorf("%s %q: %s", c.key, c.value, p)
		}
		if d := cmp.Diff(model.Balancing{}, r.service.Balancing); d != "" || r.service.AffinityTimeout != 3*time.Hour {
			t.Errorf("%s %q: has an effect: %s", c.key, c.value, d)
		}
	}
}

// Annotations that are right by themselves may not fit together.
func TestAnnotationsThatDoNotFit(t *testing.T) {
	for _, c := range []struct {
		annotations written
		says        string
	}{
		{written{"scheduler": "mh", "scheduler-flags": "sh-port"}, `"sh-port" is no flag of the scheduler mh: must be none, or some of mh-fallback, mh-port`},
		{written{"scheduler": "mh", "scheduler-flags": "none,mh-port"}, `"none" is no flag`},
		{written{"scheduler": "sh", "scheduler-flags": "flag-3"}, `"flag-3" is no flag of the scheduler sh`},
		{written{"scheduler": "rr", "scheduler-flags": "flag-1"}, "must be none: the scheduler rr has no flags"},
		{written{"scheduler": "lc", "scheduler-flags": "lc-port"}, "must be none: the scheduler lc has no flags"},
		{written{"max-connections": "10", "resume-connections": "10"}, "must be less than"},
	} {
		r, _ := newTestConverter().convert(annotated(c.annotations), "")
		if len(r.problems) != 1 || !strings.Contains(r.problems[0].Message, c.says) || r.service.Balancing.FlagsSet || r.service.Balancing.ResumeConnections > 0 {
			t.Errorf("%v: problems %v, %+v", c.annotations, r.problems, r.service.Balancing)
		}
	}
	plain := testService("web", func(s *v1.Service) {
		s.Annotations = map[string]string{annotationPrefix + "one-packet": "true", annotationPrefix + "affinity-prefix-ipv4": "24",
			annotationPrefix + "affinity-ports": "all"}
	})
	r, _ := newTestConverter().convert(plain, "")
	const needs = "needs session affinity: set spec.sessionAffinity to ClientIP"
	if len(r.problems) != 3 || !strings.Contains(r.problems[0].Message, needs) || !strings.Contains(r.problems[1].Message, needs) ||
		!strings.Contains(r.problems[2].Message, "needs a UDP port") ||
		r.service.Balancing.OnePacket || r.service.Balancing.ClientBits4 != 0 || r.service.Balancing.AllPorts {
		t.Errorf("problems %v, %+v", r.problems, r.service.Balancing)
	}
}

func TestNodeAnnotations(t *testing.T) {
	for _, c := range []struct {
		value  string
		weight uint32
		set    bool
	}{{"0", 0, true}, {"4", 4, true}, {"-1", 0, false}, {"4x", 0, false}} {
		node := testNode()
		node.Annotations = map[string]string{annotationPrefix + "weight": c.value, "other": "thing"}
		r, _ := newTestConverter().convert(node, "")
		if r.node.Weight != c.weight || r.node.WeightSet != c.set || len(r.problems) > 0 == c.set {
			t.Errorf("%s: %+v, problems %v", c.value, r.node, r.problems)
		}
	}
}

// FuzzAnnotations: whatever a value is, it is read without harm; what is accepted is within bounds, and what is refused is one
// Problem and without effect.
func FuzzAnnotations(f *testing.F) {
	for i, row := range ServiceAnnotations {
		for _, value := range []string{row.Example, "", "0", "-1", "99999999999999999999", "a=1,a=2", "sh-port,none", "\xff=\x00", "1e9s", "a=,=1"} {
			f.Add(uint8(i), value, "sh")
		}
	}
	f.Fuzz(func(t *testing.T, number uint8, value, scheduler string) {
		row := ServiceAnnotations[int(number)%len(ServiceAnnotations)]
		r, err := newTestConverter().convert(annotated(written{"scheduler": scheduler, row.Key: value}), "")
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range r.problems {
			checkProblem(t, p)
			if !utf8.ValidString(p.Value) || !strings.HasPrefix(p.Field, "metadata.annotations["+annotationPrefix) {
				t.Errorf("%+v", p)
			}
		}
		checkBalancing(t, r.service)
		node := testNode()
		node.Annotations = map[string]string{annotationPrefix + "weight": value}
		if n, _ := newTestConverter().convert(node, ""); n.node.Weight > model.MaxWeight || n.node.WeightSet != (len(n.problems) == 0) {
			t.Errorf("%q: %+v", value, n.node)
		}
	})
}

func checkBalancing(t *testing.T, s *model.Service) {
	t.Helper()
	b := s.Balancing
	switch {
	case b.Scheduler != "" && !model.KnownScheduler(b.Scheduler),
		b.FlagsSet && (b.Scheduler == "" || int(b.Flags) >= 1<<len(model.SchedulerNamed(b.Scheduler).Flags)),
		b.ClientBits4 > 32, b.ClientBits6 != 0, // the Service has no IPv6 address
		b.ResumeConnections > 0 && b.ResumeConnections >= b.MaxConnections,
		b.SlowStart < 0, b.SlowStart > time.Hour, b.SlowStart%time.Second != 0,
		s.AffinityTimeout < time.Second, s.AffinityTimeout > 31*24*time.Hour:
		t.Errorf("%+v, affinity %s", b, s.AffinityTimeout)
	}
	for _, list := range [][]model.NamedWeight{b.Weights.Zones, b.Weights.Nodes, b.Weights.Pods, {{Name: "x", Weight: b.Weights.Default}}} {
		for i, w := range list {
			if w.Name == "" || w.Weight > model.MaxWeight || i > 0 && w.Name <= list[i-1].Name {
				t.Errorf("weights %+v", list)
			}
		}
	}
}

// TestAnnotationsPage keeps docs/annotations.md what the table says, and the table's examples valid.
func TestAnnotationsPage(t *testing.T) {
	var b strings.Builder
	b.WriteString(annotationsHead)
	b.WriteString("## On Services\n\n")
	writeAnnotations(&b, ServiceAnnotations)
	b.WriteString("\n## On Nodes\n\n")
	writeAnnotations(&b, NodeAnnotations)
	b.WriteString(annotationsTail)
	file := filepath.Join("..", "..", "docs", "annotations.md")
	if *update {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(have), b.String()); d != "" {
		t.Errorf("%s is stale (-want +got); `go test ./internal/watch -run TestAnnotationsPage -update` writes it anew:\n%s", file, d)
	}
	for _, row := range ServiceAnnotations {
		r, _ := newTestConverter().convert(annotated(written{"scheduler": "mh", "max-connections": "1000", row.Key: row.Example}), "")
		for _, p := range r.problems {
			if row.Key != annotationPrefix+"affinity-prefix-ipv6" { // this Service has no IPv6 address
				t.Errorf("the example of %s: %s", row.Key, p)
			}
		}
	}
}

func writeAnnotations[T any](b *strings.Builder, table []Annotation[T]) {
	b.WriteString("| annotation | valid | example | what it does |\n|---|---|---|---|\n")
	for _, row := range table {
		key := "`" + row.Key + "`"
		if row.Alias != "" {
			key += ", or `" + row.Alias + "`"
		}
		fmt.Fprintf(b, "| %s | %s | `%s` | %s |\n", key, row.Valid, row.Example, row.Meaning)
	}
}

const annotationsHead = `# Annotations

<!-- Written by the tests of internal/watch from the table that annotations are read by: go test ./internal/watch -update -->

Annotations say how a Service balances its connections; [schedulers.md](schedulers.md) helps to choose. What a Service does not
say is decided by the node's configuration, such as ` + "`--ipvs-scheduler`" + `. A change takes effect in place: no virtual server is made
anew (for ` + "`affinity-ports`" + ` another one is made beside it), no open connection is lost.

A bad annotation is as if it were not there: the Service goes on with what it has otherwise, and a Warning Event on the Service
(and a metric, and the log) names the annotation, its value and what would be valid. So is one that kube-ipvs does not know.

`

const annotationsTail = `
## Which weight counts

The pod's, else its node's, else its zone's, else the Service's ` + "`weight`" + `, else 1; times the weight of the Node object, if it has
one; in a Service with ` + "`slow-start`" + ` times 10, so that a weight of 1 can rise, too (not for ovf, lblc and lblcr, to which a weight is a
number of connections). What exceeds 2147483647 counts as that. Only the relation of weights matters to most schedulers; keep
them below some hundreds all the same: sh has 256 places in all, and wrr may search for as long as the largest weight has steps.

Weight 0 works with every scheduler: no new connections, open ones go on. Are all endpoints of a port at 0, new connections are
refused at once.

Where weights differ, or rise slowly, rr gives way to wrr and lc to wlc. dh treats all alike: an Event says so.

## Coming from kube-router

` + "`kube-router.io/service.scheduler` and `kube-router.io/service.schedflags`" + ` are read where the annotation of ours is missing. A pod
always reaches itself through its Service, as with ` + "`kube-router.io/service.hairpin`" + `; other annotations of kube-router, such as
` + "`kube-router.io/service.dsr`" + `, are not read.
`
