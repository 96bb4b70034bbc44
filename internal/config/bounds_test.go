package config

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/iptables"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/labtest"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/live"
	"github.com/kube-ipvs/kube-ipvs/internal/want"
)

type boundsTrial struct {
	bounds, refused []string
	// with is another setting (path=value) that this setting requires.
	with string
	// try writes the value to the kernel and reads it back. Nil means tryNode.
	try func(t *testing.T, s Settings)
	// exempt is the reason why the value never reaches the kernel.
	exempt string
}

var (
	timeoutTrial  = boundsTrial{bounds: []string{"1s", "2147483s"}, refused: []string{"-1s", "1500ms", "2147484s"}}
	nameOfTheMost = strings.Repeat("i", maxInterfaceName)
)

// boundsTrials lists all settings that are numbers, durations or interface names.
var boundsTrials = map[string]boundsTrial{
	"clientConnection.qps":   {exempt: "requests to the API server"},
	"clientConnection.burst": {exempt: "requests to the API server"},
	"ipvs.syncPeriod":        {exempt: "a timer of the agent"},
	"ipvs.minSyncPeriod":     {exempt: "a timer of the agent"},
	"ipvs.checkPeriod":       {exempt: "a timer of the agent"},
	"ipvs.drainTimeout":      {exempt: "a timer of the agent"},
	"metrics.servicePorts":   {exempt: "a limit of the metrics"},
	"metrics.endpoints":      {exempt: "a limit of the metrics"},
	"forward.maxConnections": {exempt: "a limit of the agent's process"},
	"forward.maxFlows":       {exempt: "a limit of the agent's process"},
	"forward.connectTimeout": {exempt: "a timer of the agent"},
	"forward.udpTimeout":     {exempt: "a timer of the agent"},
	"snapshot.maxAge":        {exempt: "compared with the age of a file"},

	"ipvs.tcpTimeout":                 timeoutTrial,
	"ipvs.tcpFinTimeout":              timeoutTrial,
	"ipvs.udpTimeout":                 timeoutTrial,
	"conntrack.tcpEstablishedTimeout": timeoutTrial,
	"conntrack.tcpCloseWaitTimeout":   timeoutTrial,
	"conntrack.udpTimeout":            timeoutTrial,
	"conntrack.udpStreamTimeout":      timeoutTrial,
	"iptables.masqueradeBit":          {bounds: []string{"0", "31"}, refused: []string{"-1", "32"}},
	"conntrack.maxPerCore":            {bounds: []string{"1", "2147483647"}, refused: []string{"-1", "2147483648"}, with: "conntrack.min=0", try: tryLimit},
	"conntrack.min":                   {bounds: []string{"0", "2147483647"}, refused: []string{"-1", "2147483648"}, with: "conntrack.maxPerCore=1", try: tryLimit},
	"oomScoreAdj":                     {bounds: []string{"-1000", "1000"}, refused: []string{"-1001", "1001"}, try: tryOOMScore},
	"detectLocal.bridgeInterface": {
		bounds: []string{"i", nameOfTheMost}, refused: []string{nameOfTheMost + "i"}, with: "detectLocalMode=" + localByBridge,
	},
	"detectLocal.interfaceNamePrefix": {
		bounds: []string{"i", nameOfTheMost[1:]}, refused: []string{nameOfTheMost}, with: "detectLocalMode=" + localByInterfacePrefix,
	},
}

func needsTrial(row setting) bool {
	return row.kind() == kindNumber || row.kind() == kindDuration || strings.HasPrefix(row.path, "detectLocal.")
}

// TestSettingBoundsInTheKernel writes the smallest and the largest value of each setting to the kernel, and reads it back. The
// parser rejects the values just beyond them.
func TestSettingBoundsInTheKernel(t *testing.T) {
	labtest.Need(t)
	for _, row := range table {
		trial, found := boundsTrials[row.path]
		if !found {
			continue
		}
		t.Run(row.path, func(t *testing.T) {
			for _, text := range trial.bounds {
				settings := newLoading().settings
				with, value, _ := strings.Cut(trial.with, "=")
				mustSet(t, &settings, row.path, text)
				if with != "" {
					mustSet(t, &settings, with, value)
				}
				if trial.try != nil {
					trial.try(t, settings)
				} else {
					tryNode(t, settings, text)
				}
			}
			for _, text := range trial.refused {
				if row.value(&Settings{}).set([]string{text}) == nil {
					t.Errorf("%s is accepted", text)
				}
			}
		})
	}
}

func mustSet(t *testing.T, s *Settings, path, text string) {
	t.Helper()
	if invalid := rowOf(path).value(s).set([]string{text}); invalid != nil {
		t.Fatalf("%s=%s %s", path, text, invalid[0].rule)
	}
}

// tryNode writes the wanted state of a node without Services to a new network namespace, and checks that the kernel's
// state does not differ afterwards.
func tryNode(t *testing.T, s Settings, text string) {
	t.Helper()
	labtest.NetNS(t)
	tables, err := iptables.Detect(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.Conntrack.MaxPerCore = 0 // applies to the whole machine; see tryLimit
	base := compile.Base(compile.Config{Host: compile.Host{NodeName: "here", Families: tables.Families}, Settings: s.compile(1)})
	var sysctls []string
	for i := range base.Sysctls {
		base.Sysctls[i].Optional = false // none may be skipped
		sysctls = append(sysctls, base.Sysctls[i].Name)
	}
	k, err := live.Open(live.Config{
		SetPrefix: compile.SetPrefix, Chains: compile.Chains, Sysctls: sysctls, Variant: tables.Variant, Families: tables.Families,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	missing := func() diff.Plan {
		have, err := k.Read(context.Background())
		if err != nil || have.RulesErr.Err() != nil {
			t.Fatal(err, have.RulesErr)
		}
		scope := diff.Scope{All: true, Touched: want.NewTouched(), LookedUp: func(kernel.ServerKey) bool { return true }}
		return diff.Decide(diff.NewTarget(want.New(base)), have, scope, diff.Options{}).Plan
	}
	for _, phase := range missing().Phases {
		for i, err := range k.Apply(context.Background(), phase.Ops) {
			if err != nil {
				t.Errorf("%s: %s: %v", text, phase.Ops[i], err)
			}
		}
	}
	for op := range missing().All {
		t.Errorf("%s: the kernel differs: %s", text, op)
	}
}

// tryLimit writes the limit of tracked connections, which only the initial network namespace may set.
func tryLimit(t *testing.T, s Settings) {
	t.Helper()
	for _, cpus := range []int{1, 4096} {
		if limit := s.Conntrack.limit(cpus); limit > 0 {
			tryFile(t, "/proc/sys/net/netfilter/nf_conntrack_max", fmt.Sprint(limit))
		}
	}
}

func tryOOMScore(t *testing.T, s Settings) {
	t.Helper()
	tryFile(t, "/proc/self/oom_score_adj", fmt.Sprint(s.OOMScoreAdj))
}

func tryFile(t *testing.T, name, value string) {
	t.Helper()
	before, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.WriteFile(name, before, 0o644) }()
	if err := os.WriteFile(name, []byte(value), 0o644); err != nil {
		t.Errorf("%s: %v", filepath.Base(name), err)
	}
	if now, _ := os.ReadFile(name); strings.TrimSpace(string(now)) != value {
		t.Errorf("%s is %s, want %s", filepath.Base(name), now, value)
	}
}
