package watch

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"

	"github.com/kube-ipvs/kube-ipvs/internal/goldentest"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/watch/watchtest"
)

// annotated returns a Service with affinity, a UDP port and annotations. It adds the kube-ipvs prefix to keys that have no
// slash.
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
		{written{"proxy-protocol": "v1"}, model.Balancing{ProxyProtocol: 1}},
		{written{"proxy-protocol": " v2 "}, model.Balancing{ProxyProtocol: 2}},
		{written{"proxy-protocol": "none"}, model.Balancing{}},
		{written{"max-connections": "2147483647", "resume-connections": "2147483646"},
			model.Balancing{MaxConnections: model.MaxConnectionLimit, ResumeConnections: model.MaxConnectionLimit - 1}},
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
		r, err := newTestConverter().Convert(annotated(c.annotations), "")
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(c.want, r.Service.Balancing); d != "" || len(r.Problems) > 0 {
			t.Errorf("%v: problems %v, (-want +got)\n%s", c.annotations, r.Problems, d)
		}
	}
}

func TestAffinityTimeoutAnnotation(t *testing.T) {
	for value, want := range map[string]time.Duration{
		"10m": 10 * time.Minute, "1": time.Second, "744h": 31 * 24 * time.Hour, // valid: overrides sessionAffinity
		"0": 3 * time.Hour, "744h1s": 3 * time.Hour, "1500ms": 3 * time.Hour, // invalid: no effect
	} {
		r, _ := newTestConverter().Convert(annotated(written{"affinity-timeout": value}), "")
		bad := want == 3*time.Hour
		if r.Service.AffinityTimeout != want || r.Service.Balancing.AffinitySet == bad || len(r.Problems) > 0 != bad {
			t.Errorf("%s: %s, by annotation %t, problems %v", value, r.Service.AffinityTimeout, r.Service.Balancing.AffinitySet, r.Problems)
		}
	}
}

// An invalid annotation has no effect. Its Problem names the key, the invalid value and the valid values.
func TestInvalidServiceAnnotations(t *testing.T) {
	for _, c := range []struct{ key, value, says string }{
		{"scheduler", "fastest", "must be one of rr, wrr, lc, wlc, fo, ovf, lblc, lblcr, dh, sh, mh, sed, nq, twos"},
		{"scheduler", "", "must be one of"},
		{"scheduler", "RR", "must be one of"},
		{"scheduler", "rr,lc", "must be one of"},
		{"kube-router.io/service.scheduler", "fastest", "must be one of"},
		{"scheduler-flags", "sh-port", "requires a valid annotation kube-ipvs.io/scheduler"},
		{"scheduler-flags", "none", "requires a valid annotation kube-ipvs.io/scheduler"},
		{"scheduler-flags", "flag-1", "requires a valid annotation"},
		{"kube-router.io/service.schedflags", "flag-1", "requires a valid annotation"},
		{"affinity-timeout", "-5s", "must be a duration of whole seconds from 1s to 744h"},
		{"affinity-timeout", "99999999999999999999", "must be a duration"},
		{"affinity-timeout", "1m,2m", "must be a duration"},
		{"affinity-prefix-ipv4", "64", "must be an integer from 1 to 32"},
		{"affinity-prefix-ipv4", "/24", "must be an integer from 1 to 32"},
		{"affinity-prefix-ipv4", "255.255.255.0", "must be an integer from 1 to 32"},
		{"affinity-prefix-ipv6", "0", "must be an integer from 1 to 128"},
		{"affinity-prefix-ipv6", "64", "applies to IPv6, but the Service has no IPv6 address"},
		{"affinity-ports", "80,443", "must be each or all"},
		{"affinity-ports", "true", "must be each or all"},
		{"one-packet", "yes", "must be true or false"},
		{"proxy-protocol", "2", "must be v1, v2 or none"},
		{"proxy-protocol", "V2", "must be v1, v2 or none"},
		{"proxy-protocol", "v1,v2", "must be v1, v2 or none"},
		{"proxy-protocol", "v2\r\nPROXY TCP4 192.0.2.1 192.0.2.2 1 2", "must be v1, v2 or none"},
		{"proxy-protocol", "", "must be v1, v2 or none"},
		{"max-connections", "0", "must be an integer from 1 to 2147483647"},
		{"max-connections", "2147483648", "must be an integer from 1 to 2147483647"},
		{"max-connections", "1,2", "must be an integer"},
		{"resume-connections", "10", "must be less than the value of the annotation kube-ipvs.io/max-connections"},
		{"weight", "2147483648", "must be an integer from 0 to 2147483647"},
		{"weight", "-1", "must be an integer"},
		{"weight", "5%", "must be an integer"},
		{"weight", "1,2", "must be an integer"},
		{"weight-by-zone", "zone-a", `"zone-a" must be name=weight`},
		{"weight-by-zone", "=5", "must be name=weight"},
		{"weight-by-zone", "a=1,", "must be name=weight"},
		{"weight-by-node", "a=1,a=2", `"a" must appear only once`},
		{"weight-by-node", "a=x", `the weight of "a": must be an integer from 0 to 2147483647`},
		{"weight-by-pod", "other/web-0=1", "without a namespace"},
		{"slow-start", "1h1s", "must be a duration of whole seconds from 1s to 1h"},
		{"slow-start", "", "must be a duration"},
		{"canary", "5%", "unknown kube-ipvs.io annotation for this kind of object; ignored"},
	} {
		r, err := newTestConverter().Convert(annotated(written{c.key: c.value}), "")
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Problems) != 1 {
			t.Errorf("%s %q: problems %v", c.key, c.value, r.Problems)
			continue
		}
		p := r.Problems[0]
		if !strings.HasSuffix(p.Field, "/"+strings.TrimPrefix(c.key, "kube-router.io/")+"]") || p.Value != c.value ||
			!strings.Contains(p.Reason, c.says) || !strings.Contains(p.Reason, "has no effect") && !strings.Contains(p.Reason, "ignored") {
			t.Errorf("%s %q: %s", c.key, c.value, p)
		}
		if d := cmp.Diff(model.Balancing{}, r.Service.Balancing); d != "" || r.Service.AffinityTimeout != 3*time.Hour {
			t.Errorf("%s %q: has an effect: %s", c.key, c.value, d)
		}
	}
}

// An invalid annotation counts as missing, so kube-router's alias applies.
func TestInvalidAnnotationBesideItsAlias(t *testing.T) {
	r, err := newTestConverter().Convert(annotated(written{
		"scheduler": "fastest", "kube-router.io/service.scheduler": "sh",
		"scheduler-flags": "sh-prot", "kube-router.io/service.schedflags": "sh-port",
	}), "")
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(model.Balancing{Scheduler: "sh", Flags: 2, FlagsSet: true}, r.Service.Balancing); d != "" {
		t.Error(d)
	}
	if len(r.Problems) != 2 {
		t.Errorf("got problems %v, want one for each invalid annotation", r.Problems)
	}
}

// Annotations that are valid individually may be invalid together or for their Service.
func TestConflictingAnnotations(t *testing.T) {
	for _, c := range []struct {
		annotations written
		says        string
	}{
		{written{"scheduler": "mh", "scheduler-flags": "sh-port"}, `"sh-port" is not a flag of the scheduler mh: must be none, or a list of mh-fallback, mh-port`},
		{written{"scheduler": "mh", "scheduler-flags": "none,mh-port"}, `"none" is not a flag`},
		{written{"scheduler": "sh", "scheduler-flags": "flag-3"}, `"flag-3" is not a flag of the scheduler sh`},
		{written{"scheduler": "rr", "scheduler-flags": "flag-1"}, "must be none: the scheduler rr has no flags"},
		{written{"scheduler": "lc", "scheduler-flags": "lc-port"}, "must be none: the scheduler lc has no flags"},
		{written{"max-connections": "10", "resume-connections": "10"}, "must be less than"},
	} {
		r, _ := newTestConverter().Convert(annotated(c.annotations), "")
		if len(r.Problems) != 1 || !strings.Contains(r.Problems[0].Reason, c.says) || r.Service.Balancing.FlagsSet || r.Service.Balancing.ResumeConnections > 0 {
			t.Errorf("%v: problems %v, %+v", c.annotations, r.Problems, r.Service.Balancing)
		}
	}
	plain := testService("web", func(s *v1.Service) {
		s.Annotations = map[string]string{annotationPrefix + "one-packet": "true", annotationPrefix + "affinity-prefix-ipv4": "24",
			annotationPrefix + "affinity-ports": "all"}
	})
	r, _ := newTestConverter().Convert(plain, "")
	const requires = "requires session affinity: set spec.sessionAffinity to ClientIP"
	if len(r.Problems) != 3 || !strings.Contains(r.Problems[0].Reason, requires) || !strings.Contains(r.Problems[1].Reason, requires) ||
		!strings.Contains(r.Problems[2].Reason, "requires a UDP port") ||
		r.Service.Balancing.OnePacket || r.Service.Balancing.ClientBits4 != 0 || r.Service.Balancing.AllPorts {
		t.Errorf("problems %v, %+v", r.Problems, r.Service.Balancing)
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
		r, _ := newTestConverter().Convert(node, "")
		if r.Node.Weight != c.weight || r.Node.WeightSet != c.set || len(r.Problems) > 0 == c.set {
			t.Errorf("%s: %+v, problems %v", c.value, r.Node, r.Problems)
		}
	}
}

// An accepted value is within bounds. A rejected value is a Problem and has no effect.
func FuzzAnnotations(f *testing.F) {
	for i, row := range serviceAnnotations {
		for _, value := range []string{row.Example, "", "0", "-1", "99999999999999999999", "a=1,a=2", "sh-port,none", "\xff=\x00", "1e9s", "a=,=1"} {
			f.Add(uint8(i), value, "sh")
		}
	}
	f.Fuzz(func(t *testing.T, number uint8, value, scheduler string) {
		row := serviceAnnotations[int(number)%len(serviceAnnotations)]
		r, err := newTestConverter().Convert(annotated(written{"scheduler": scheduler, row.Key: value}), "")
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range r.Problems {
			watchtest.CheckProblem(t, p)
			if !utf8.ValidString(p.Value) || !strings.HasPrefix(p.Field, "metadata.annotations["+annotationPrefix) {
				t.Errorf("%+v", p)
			}
		}
		checkBalancing(t, r.Service)
		node := testNode()
		node.Annotations = map[string]string{annotationPrefix + "weight": value}
		if n, _ := newTestConverter().Convert(node, ""); n.Node.Weight > model.MaxWeight || n.Node.WeightSet != (len(n.Problems) == 0) {
			t.Errorf("%q: %+v", value, n.Node)
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
		b.ResumeConnections > 0 && b.ResumeConnections >= b.MaxConnections, b.ProxyProtocol > 2,
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

// docs/annotations.md is generated from the table, and the examples in the table are valid.
func TestAnnotationsPage(t *testing.T) {
	var b strings.Builder
	b.WriteString(annotationsHead)
	b.WriteString("## Annotations of Services\n\n")
	writeAnnotations(&b, serviceAnnotations)
	b.WriteString("\n## Annotations of Nodes\n\n")
	writeAnnotations(&b, nodeAnnotations)
	b.WriteString(annotationsTail)
	goldentest.Compare(t, filepath.Join("..", "..", "docs", "annotations.md"), b.String())
	for _, row := range serviceAnnotations {
		r, _ := newTestConverter().Convert(annotated(written{"scheduler": "mh", "max-connections": "1000", row.Key: row.Example}), "")
		for _, p := range r.Problems {
			if row.Key != annotationPrefix+"affinity-prefix-ipv6" { // this Service has no IPv6 address
				t.Errorf("the example of %s: %s", row.Key, p)
			}
		}
	}
}

func writeAnnotations[T any](b *strings.Builder, table []annotation[T]) {
	b.WriteString("| annotation | valid values | example | effect |\n|---|---|---|---|\n")
	for _, row := range table {
		key := "`" + row.Key + "`"
		if row.Alias != "" {
			key += ", or `" + row.Alias + "`"
		}
		fmt.Fprintf(b, "| %s | %s | `%s` | %s |\n", key, row.Valid, row.Example, row.Meaning)
	}
}

// The table of annotations states the smallest and largest value of each annotation.
func TestAnnotationBounds(t *testing.T) {
	checkBounds(t, serviceAnnotations)
	checkBounds(t, nodeAnnotations)
	flags := serviceAnnotations[slices.IndexFunc(serviceAnnotations, func(a annotation[model.Service]) bool { return strings.HasSuffix(a.Key, "/scheduler-flags") })]
	for _, name := range model.Schedulers {
		var byDefault []string
		for i, flag := range model.SchedulerNamed(name).Flags {
			if model.SchedulerNamed(name).DefaultFlags&(1<<i) != 0 {
				byDefault = append(byDefault, flag)
			}
		}
		if want := strings.Join(byDefault, ","); !strings.Contains(flags.Meaning, want) {
			t.Errorf("the default flags of %s are %s, but the table has %q", name, want, flags.Meaning)
		}
	}
}

var boundsOf, eitherOf = regexp.MustCompile(`from (\S+) to (\S+)`), regexp.MustCompile(`^(\w+) or (\w+)$`)

func checkBounds[T any](t *testing.T, table []annotation[T]) {
	for _, row := range table {
		var valid, invalid []string
		if m := boundsOf.FindStringSubmatch(row.Valid); m != nil {
			valid = m[1:]
			for i, step := range []int{-1, 1} {
				if n, err := strconv.Atoi(m[i+1]); err == nil {
					invalid = append(invalid, strconv.Itoa(n+step))
				} else if d, err := time.ParseDuration(m[i+1]); err == nil {
					invalid = append(invalid, (d + time.Duration(step)*time.Second).String())
				}
			}
		} else if m := eitherOf.FindStringSubmatch(row.Valid); m != nil {
			valid, invalid = m[1:], []string{"", m[0]}
		}
		for i := range valid {
			var object T
			if err := row.parse(&object, valid[i]); err != nil {
				t.Errorf("%s: %q: %v", row.Key, valid[i], err)
			}
			if row.parse(&object, invalid[i]) == nil {
				t.Errorf("%s: %q is accepted, but %q does not allow it", row.Key, invalid[i], row.Valid)
			}
		}
	}
}

const annotationsHead = `# Annotations

<!-- Generated from the tables in internal/watch: go test ./internal/watch -update -->

Annotations control how a Service balances its connections. [schedulers.md](schedulers.md) helps you
choose. Without an annotation, the node's configuration applies, such as ` + "`--ipvs-scheduler`" + `. The
agent applies a change in place: it keeps the virtual server and its open connections.
(` + "`affinity-ports`" + ` adds a virtual server to the existing ones.)

An annotation that is invalid or unknown to kube-ipvs has no effect; the Service is still served. A
Warning Event on the Service and a log message name the annotation, its value and the valid values,
and the metric ` + "`kube_ipvs_problems`" + ` counts the problem.

`

const annotationsTail = `
## Which weight applies

An endpoint's weight is the first of these that is set: the weight for its pod, for its node, for
its zone, the Service's ` + "`weight`" + `, and finally 1. If the Node object has a weight, the endpoint's
weight is multiplied by it. In a Service with ` + "`slow-start`" + ` it is also multiplied by 10, so that a
weight of 1 can rise in steps (not with ovf, lblc and lblcr, where a weight is a number of
connections). The maximum is 2147483647; larger results are reduced to it.

For most schedulers, only the ratio of weights matters. Still, keep weights below a few hundred: the
sh table has only 256 entries. With wrr and ` + "`max-connections`" + `, the agent divides all weights by a
common number if they are too large ([why](schedulers.md#limit-connections)).

Weight 0 works with every scheduler: the endpoint gets no new connections, and open ones continue.
If all endpoints of a port have weight 0, new connections are refused immediately.

If the weights of a port's endpoints differ, may differ later, or rise slowly, the agent uses wrr
instead of rr and wlc instead of lc ([why](schedulers.md#change-settings)). dh treats all weights
above 0 alike; if they differ, an Event reports this.

## Migrating from kube-router

` + "`kube-router.io/service.scheduler` and `kube-router.io/service.schedflags`" + ` apply if kube-ipvs's own
annotation is missing or invalid. A pod can always reach itself through its Service, as with
` + "`kube-router.io/service.hairpin`" + `. Other kube-router annotations, such as
` + "`kube-router.io/service.dsr`" + `, are ignored.
`
