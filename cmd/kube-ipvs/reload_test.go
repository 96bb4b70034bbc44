package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/config"
)

const configHead = "apiVersion: config.kube-ipvs.io/v1alpha1\nkind: Configuration\nhostnameOverride: node-1\n"

// TestReload: a changed file is taken without a restart, as far as it can be, and what waits for one is named. A bad file changes
// nothing, is told in the log and to those who ask, until it is a good one again.
func TestReload(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(configHead+text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("ipvs: {scheduler: rr}\n")
	flags := &config.Flags{}
	set := pflag.NewFlagSet("run", pflag.ContinueOnError)
	flags.AddRun(set)
	if err := set.Parse([]string{"--config", file}); err != nil {
		t.Fatal(err)
	}
	loaded, err := flags.Load()
	if err != nil {
		t.Fatal(err)
	}
	core, logs := observer.New(zap.InfoLevel)
	reload := make(chan agent.Settings)
	r := &reloader{flags: flags, current: newCurrent(loaded), reload: reload, level: zap.NewAtomicLevel(), log: zap.New(core)}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); r.run(ctx, time.Millisecond) }()

	write("ipvs: {scheduler: wlc, syncPeriod: 10s}\nlogging: {level: debug}\noomScoreAdj: 7\n")
	if s := <-reload; s.Compile.Scheduler != "wlc" || s.AuditInterval != 10*time.Second || r.level.Level() != zapcore.DebugLevel {
		t.Errorf("taken: %+v, log level %s", s, r.level.Level())
	}
	if !logged(logs, zap.WarnLevel, "need an agent restart", "oomScoreAdj") {
		t.Errorf("that oomScoreAdj waits is not told: %v", logs.All())
	}
	if adj := r.current.settings().OOMScoreAdj; adj == 7 {
		t.Error("what waits for a restart is in force")
	}

	write("ipvs: {scheduler: fastest}\n")
	await(t, "the bad file is refused", func() bool { return strings.Contains(r.current.whyRefused(), `c.yaml:4: ipvs.scheduler "fastest"`) })
	if !logged(logs, zap.ErrorLevel, "going on with the settings from before", `ipvs.scheduler "fastest"`) || r.current.settings().Scheduler != "wlc" {
		t.Errorf("scheduler %s; %v", r.current.settings().Scheduler, logs.All())
	}
	write("ipvs: {scheduler: sh}\n")
	if s := <-reload; s.Compile.Scheduler != "sh" || r.current.whyRefused() != "" {
		t.Errorf("taken: %+v; refused because of %q", s, r.current.whyRefused())
	}
	stop()
	<-ended
}

// TestReloadPassesOnEverySetting: whatever an agent can change while it runs comes from the configuration.
func TestReloadPassesOnEverySetting(t *testing.T) {
	common := []string{
		"--masquerade-all", "--nodeport-addresses=primary", "--ipvs-exclude-cidrs=203.0.113.0/24", "--accept-service-traffic",
		"--service-proxy-name=other", "--ipvs-strict-arp", "--conntrack-min=1", "--ipvs-udp-timeout=1m", "--ipvs-min-sync-period=1s",
		"--drain-timeout=1m", "--external-ip-ranges=198.51.100.0/24",
	}
	forgotten := map[string]bool{}
	for _, local := range [][]string{{"--cluster-cidr=10.0.0.0/8", "--masquerade-pod-egress"}, {"--detect-local-mode=NodeCIDR"}} {
		flags := &config.Flags{}
		set := pflag.NewFlagSet("run", pflag.ContinueOnError)
		flags.AddRun(set)
		if err := set.Parse(slices.Concat(common, local)); err != nil {
			t.Fatal(err)
		}
		loaded, err := flags.Load()
		if err != nil {
			t.Fatal(err)
		}
		s := agentSettings(&loaded.Settings)
		for _, v := range []reflect.Value{reflect.ValueOf(s), reflect.ValueOf(s.Compile)} {
			for i := range v.NumField() {
				name := v.Type().Field(i).Name
				before, seen := forgotten[name]
				forgotten[name] = (before || !seen) && v.Field(i).IsZero()
			}
		}
	}
	for name, is := range forgotten {
		if is {
			t.Errorf("%s does not reach the agent", name)
		}
	}
}

// logged says whether there is a log line of that level with these words in it or its fields.
func logged(logs *observer.ObservedLogs, level zapcore.Level, words ...string) bool {
	return slices.ContainsFunc(logs.FilterLevelExact(level).All(), func(e observer.LoggedEntry) bool {
		text := e.Message
		for key, value := range e.ContextMap() {
			text += " " + key + " " + fmt.Sprint(value)
		}
		return !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(text, word) })
	})
}

// await waits for what another goroutine does.
func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not seen: " + what)
		}
	}
}
