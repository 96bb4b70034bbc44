//go:build linux

package daemon

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
	"github.com/kube-ipvs/kube-ipvs/internal/compile"
	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

const configHead = "apiVersion: config.kube-ipvs.io/v1alpha1\nkind: Configuration\nhostnameOverride: node-1\n"

// TestReload: changes to the file take effect without a restart, and the log names the settings that need a restart.
// An invalid file changes nothing. The log and the status show its error until the file is valid.
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
	reload := make(chan agent.Reload)
	r := &reloader{flags: flags, current: newCurrent(loaded), reload: reload, level: zap.NewAtomicLevel(), log: zap.New(core)}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); r.run(ctx, time.Millisecond) }()

	write("ipvs: {scheduler: wlc, syncPeriod: 10s}\nlogging: {level: debug}\noomScoreAdj: 7\n")
	if s := <-reload; s.Compile.Scheduler != "wlc" || s.AuditInterval != 10*time.Second || r.level.Level() != zapcore.DebugLevel {
		t.Errorf("applied %+v, log level %s", s, r.level.Level())
	}
	if !logged(logs, zap.WarnLevel, "need an agent restart", "oomScoreAdj") {
		t.Errorf("the log contains no warning that oomScoreAdj needs a restart: %v", logs.All())
	}
	if adj := r.current.settings().OOMScoreAdj; adj == 7 {
		t.Error("a setting that needs a restart took effect")
	}

	write("ipvs: {scheduler: fastest}\n")
	await(t, "the invalid file is refused", func() bool { return strings.Contains(r.current.fileError(), `c.yaml:4: ipvs.scheduler "fastest"`) })
	if !logged(logs, zap.ErrorLevel, "keeping the previous settings", `ipvs.scheduler "fastest"`) || r.current.settings().Scheduler != "wlc" {
		t.Errorf("got scheduler %s; log %v", r.current.settings().Scheduler, logs.All())
	}
	write("ipvs: {scheduler: sh}\n")
	if s := <-reload; s.Compile.Scheduler != "sh" || !slices.Contains(s.Changed, "ipvs.scheduler") || r.current.fileError() != "" {
		t.Errorf("applied %+v; the file was refused because of %q", s, r.current.fileError())
	}
	stop()
	<-ended
}

// TestReloadPassesOnEverySetting checks that the agent receives every setting that can change at run time.
func TestReloadPassesOnEverySetting(t *testing.T) {
	common := []string{
		"--masquerade-all", "--nodeport-addresses=primary", "--ipvs-exclude-cidrs=203.0.113.0/24", "--accept-service-traffic",
		"--service-proxy-name=other", "--ipvs-strict-arp", "--conntrack-min=1", "--ipvs-udp-timeout=1m", "--ipvs-min-sync-period=1s",
		"--drain-timeout=1m", "--external-ip-ranges=198.51.100.0/24", "--addresses=routes", "--ipvs-traffic-counters=false",
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

func logged(logs *observer.ObservedLogs, level zapcore.Level, words ...string) bool {
	return slices.ContainsFunc(logs.FilterLevelExact(level).All(), func(e observer.LoggedEntry) bool {
		text := e.Message
		for key, value := range e.ContextMap() {
			text += " " + key + " " + fmt.Sprint(value)
		}
		return !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(text, word) })
	})
}

func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("not seen: " + what)
		}
	}
}

// A reload may enable any sysctl. The kernel reader receives the names only at startup, so it must read all sysctls.
func TestSysctlsOfEveryReload(t *testing.T) {
	for _, mode := range []kernel.Mode{kernel.IPVSWithIPTables, kernel.IPVSWithNFTables, kernel.NFTablesOnly} {
		var on config.Settings
		on.StrictARP = true
		fields := reflect.ValueOf(&on.Conntrack).Elem()
		for i := range fields.NumField() {
			if f := fields.Field(i); f.Kind() == reflect.Bool {
				f.SetBool(true)
			} else {
				f.SetInt(int64(time.Hour))
			}
		}
		read := sysctlNames(&config.Settings{TrafficCounters: true}, mode)
		for _, s := range compile.Base(compile.Config{Host: compile.Host{Mode: mode}, Settings: on.Compile()}).Sysctls {
			if !slices.Contains(read, s.Name) {
				t.Errorf("%s is not read", s.Name)
			}
		}
	}
}
