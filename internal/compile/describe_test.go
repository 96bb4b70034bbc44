package compile_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/compile/compiletest"
	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

func withEverySetting(p inet.Protocol) *model.Service {
	svc := compiletest.Service("web", "10.96.0.1", "10.244.0.1")
	svc.Ports[0] = model.ServicePort{Name: "http", Protocol: p, Port: 8080, NodePort: 30080}
	svc.Slices[0].Ports[0].Protocol = p
	svc.AffinityTimeout = time.Minute
	weights := []model.NamedWeight{{Name: "a", Weight: 2}, {Name: "b", Weight: 3}}
	svc.Balancing = model.Balancing{
		Scheduler: "mh", Flags: 1, FlagsSet: true, AffinitySet: true, ClientBits4: 24, AllPorts: true, OnePacket: true,
		MaxConnections: 100, ResumeConnections: 80, SlowStart: time.Minute, ProxyProtocol: 2,
		Weights: model.Weights{Default: 4, DefaultSet: true, Zones: weights, Nodes: weights, Pods: weights},
	}
	return svc
}

func TestEverySettingIsDescribed(t *testing.T) {
	svc := withEverySetting(inet.UDP)
	cluster := compile.NewCluster(compiletest.Config())
	cluster.SetAddresses(home.Addresses, want.NewTouched())
	cluster.Update(services{svc.ID: svc}, want.NewTouched())
	want := []string{
		"scheduler: mh from annotation kube-ipvs.io/scheduler",
		"scheduler flags: mh-fallback from annotation kube-ipvs.io/scheduler-flags",
		"affinity: 1m0s from annotation kube-ipvs.io/affinity-timeout",
		"affinity client: /24 from annotation kube-ipvs.io/affinity-prefix-ipv4",
		"one packet: true from annotation kube-ipvs.io/one-packet",
		"max connections: 100 from annotation kube-ipvs.io/max-connections",
		"resume connections: 80 from annotation kube-ipvs.io/resume-connections",
		"weight: 4 from annotation kube-ipvs.io/weight",
		"weight by zone: a=2,b=3 from annotation kube-ipvs.io/weight-by-zone",
		"weight by node: a=2,b=3 from annotation kube-ipvs.io/weight-by-node",
		"weight by pod: a=2,b=3 from annotation kube-ipvs.io/weight-by-pod",
		"slow start: 1m0s from annotation kube-ipvs.io/slow-start",
	}
	spans := map[view.Kind]string{
		"ClusterIP": "affinity ports: all from annotation kube-ipvs.io/affinity-ports",
		"NodePort":  "affinity ports: each from node ports differ from their target ports",
	}
	for _, frontend := range described(cluster, svc.ID) {
		var have []string
		for _, s := range frontend.Settings {
			have = append(have, fmt.Sprintf("%s: %s from %s", s.Name, s.Value, s.From))
		}
		if d := cmp.Diff(append(want, spans[frontend.Kind]), have); d != "" {
			t.Errorf("%s (-want +have):\n%s", frontend.Kind, d)
		}
	}
}

// TestOnlySettingsInEffectAreDescribed: no setting is described whose Problem says that this node's data plane lacks it.
func TestOnlySettingsInEffectAreDescribed(t *testing.T) {
	lacking := regexp.MustCompile("only IPVS can do this|cannot do this|cannot add the header")
	for mode, most := range map[kernel.Mode]int{kernel.IPVSWithIPTables: 0, kernel.NFTablesOnly: 3, kernel.Userspace: 5} {
		for _, protocol := range []inet.Protocol{inet.TCP, inet.UDP} {
			svc, cfg := withEverySetting(protocol), compiletest.Config()
			cfg.Mode = mode
			cluster := compile.NewCluster(cfg)
			cluster.SetAddresses(home.Addresses, want.NewTouched())
			cluster.Update(services{svc.ID: svc}, want.NewTouched())
			settings := map[string]string{}
			for _, frontend := range described(cluster, svc.ID) {
				for _, s := range frontend.Settings {
					settings[strings.TrimPrefix(s.From, "annotation ")] = s.Value
				}
			}
			problems := slices.DeleteFunc(cluster.Problems(svc.ID), func(p model.Problem) bool { return !lacking.MatchString(p.Reason) })
			for _, problem := range problems {
				annotation := strings.TrimSuffix(strings.TrimPrefix(problem.Field, "metadata.annotations["), "]")
				if value, described := settings[annotation]; described {
					t.Errorf("%s, %s: %s is described, although there is %s", mode, protocol, value, problem)
				}
			}
			if protocol == inet.UDP && len(problems) != most {
				t.Errorf("%s: %d problems: %v", mode, len(problems), problems)
			}
		}
	}
}

// If a node lacks its configured scheduler, the node's problems and each Service's settings show the scheduler in use.
func TestLastResortIsDescribed(t *testing.T) {
	cfg := compiletest.Config()
	cfg.Scheduler = "twos"
	svc := compiletest.Service("web", "10.96.0.1", "10.244.0.1")
	cluster := compile.NewCluster(cfg)
	cluster.Update(services{svc.ID: svc}, want.NewTouched())
	said := func() string {
		return fmt.Sprint(cluster.NodeProblems(), described(cluster, svc.ID)[0].Settings[0], cluster.Problems(svc.ID), cluster.SchedulersToCheck())
	}
	if text := said(); text != "[] {scheduler twos node configuration} [] [twos]" {
		t.Error(text)
	}
	again := cluster.SetSchedulers(map[string]bool{"twos": false, "rr": true}, want.NewTouched())
	if text := said(); len(again) != 1 || !strings.Contains(text, `Node node-a: --ipvs-scheduler "twos": this node's kernel has no such scheduler: rr is used`) ||
		!strings.Contains(text, "{scheduler rr last resort, because this kernel has no twos} [] [twos]") {
		t.Error(text)
	}
	if again := cluster.SetSchedulers(map[string]bool{"twos": false}, want.NewTouched()); len(again) > 0 {
		t.Errorf("compiled %v without a change", again)
	}
	if again := cluster.SetSchedulers(map[string]bool{"twos": true}, want.NewTouched()); len(again) != 1 || said() != "[] {scheduler twos node configuration} [] [twos]" {
		t.Error(again, said())
	}
}

func described(cluster *compile.Cluster, id model.ServiceID) (all []view.Frontend) {
	svc, _ := cluster.Service(id)
	for front := range svc.Frontends {
		all = append(all, front)
	}
	return all
}
