package inspect

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/internal/bundle"
	"github.com/kube-ipvs/kube-ipvs/internal/doctor"
	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// After a virtual server is deleted, the history contains the repair and its cause.
func TestHistory(t *testing.T) {
	s := newStage(t)
	list := runJSON[inspect.HistoryList](t, s, "history")
	if len(list.Items) == 0 || list.Items[0].Kind != view.SyncFull || list.Items[0].Services.Count != services || list.Items[0].Failed() {
		t.Fatalf("the start: %+v", list)
	}
	s.node.MustRun(t, "ipvsadm", "-D", "-t", plainIP+":80")
	cluster.Eventually(t, patience, "the history contains the repair", func() error {
		repairs := runJSON[inspect.HistoryList](t, s, "history", "--repairs", "--service", "default/plain").Items
		if !slices.ContainsFunc(repairs, func(e *view.PastSync) bool {
			return e.Kind == view.SyncRepair && slices.Contains(e.Services.Items, "default/plain") && strings.Contains(strings.Join(e.Drift.Items, "\n"), plainIP)
		}) {
			return fmt.Errorf("repairs: %+v", repairs)
		}
		return nil
	})
	if out := s.node.MustRun(t, s.binary, "history", "--status-socket", s.socket); !strings.Contains(out, "repaired: virtual server "+plainIP) {
		t.Errorf("history prints\n%s", out)
	}
}

// Without counters, connections work, and the commands that would show old values say so.
func TestStoppedCounters(t *testing.T) {
	s := newStage(t, "--metrics-service-ports=0", "--ipvs-traffic-counters=false")
	if _, err := s.node.Sysctl("net/ipv4/vs/run_estimation"); err != nil {
		t.Skip("this kernel cannot stop the counters: ", err)
	}
	conn := s.client.Open(t, cluster.TCP, plainIP+":80")
	conn.MustPing(t)
	time.Sleep(5 * time.Second) // otherwise, the kernel would update the counters every two seconds
	const stopped = "the counters are stopped"
	for _, option := range []string{"--stats", "--rate"} {
		out := s.node.MustRun(t, "sh", "-c", s.binary+" ipvsadm -Ln -t "+plainIP+":80 "+option+" 2>&1")
		if !strings.Contains(out, stopped) || !regexp.MustCompile(plainIP+`:80( +0){5}\s`).MatchString(out) {
			t.Errorf("ipvsadm %s prints\n%s", option, out)
		}
	}
	if out := s.node.MustRun(t, "sh", "-c", s.binary+" ipvsadm -Ln 2>&1"); strings.Contains(out, stopped) || !regexp.MustCompile(`Masq +1 +1 `).MatchString(out) {
		t.Errorf("ipvsadm prints\n%s", out)
	}
	if report := runJSON[doctor.Report](t, s, "doctor"); strings.Contains(fmt.Sprint(report), "IPVS counters") {
		t.Errorf("doctor reports what is configured: %+v", report)
	}
}

// A part of the archive may be missing only if this node has no source for it.
func TestBundle(t *testing.T) {
	s := newStage(t)
	path := filepath.Join(s.dir, "bundle.tar.gz")
	if out, err := s.node.Run(s.binary, "bundle", path, "--status-socket", s.socket); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	read := func(file string) string { return s.node.MustRun(t, "tar", "-xzOf", path, "kube-ipvs-bundle/"+file) }
	var index bundle.Manifest
	if err := json.Unmarshal([]byte(read("manifest.json")), &index); err != nil {
		t.Fatal(err)
	}
	for _, f := range index.Files {
		if f.Error != "" && f.File != "node/agent.log" && f.File != "node/kernel.log" && !strings.HasPrefix(f.File, "node/doctor") {
			t.Errorf("%s (%s): %s", f.File, f.Command, f.Error)
		}
	}
	for file, want := range map[string]string{
		"agent/services.txt": plainIP, "agent/history.json": "default/plain", "agent/metrics.txt": "kube_ipvs_", "kernel/ipvsadm-Ln.txt": plainIP + ":80",
		"kernel/ipvsadm-Sn.txt": "-A -t " + plainIP, "kernel/sets.txt": plainIP, "kernel/rules.txt": "KUBE-SERVICES", "node/addresses.txt": plainIP + "/32 dev kube-ipvs0",
		"node/sysctls.txt": "net/ipv4/ip_forward = 1",
	} {
		if text := read(file); !strings.Contains(text, want) {
			t.Errorf("%s lacks %q:\n%s", file, want, text)
		}
	}
}
