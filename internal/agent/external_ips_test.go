package agent_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// The agent serves external IPs unless the API server's version is 1.40 or newer. After an upgrade from an older version, a running agent keeps
// serving them until it restarts, and reports a Problem.
func TestExternalIPsEndWithTheAPIServersVersion(t *testing.T) {
	unknown, older, newer := model.Version{}, model.Version{Major: 1, Minor: 39}, model.Version{Major: 1, Minor: 40}
	for name, test := range map[string]struct {
		versions         []model.Version // unknown stands for a restart of the agent
		served, problems bool
	}{
		"unknown version":                     {nil, true, false},
		"older version":                       {[]model.Version{older}, true, false},
		"newer version":                       {[]model.Version{newer}, false, true},
		"upgrade":                             {[]model.Version{older, newer}, true, true},
		"upgrade and restart":                 {[]model.Version{older, newer, unknown, newer}, false, true},
		"restart without an answer":           {[]model.Version{newer, unknown}, true, false},
		"an older server among newer servers": {[]model.Version{newer, older}, true, false},
	} {
		t.Run(name, func(t *testing.T) {
			calmBubble(t, func(w *world) {
				w.config.Compile.ExternalIPs.ByVersion = true
				svc := web()
				svc.ExternalIPs = []netip.Addr{netip.MustParseAddr("203.0.113.1")}
				w.put(svc)
				w.start()
				w.sleep(time.Second)
				problems := w.lastReport().Problems[webID]
				for _, v := range test.versions {
					if v == unknown {
						w.restart()
					} else {
						w.source.putVersion(v)
					}
					w.sleep(time.Second)
					problems = w.lastReport().Problems[webID]
				}
				if w.has("203.0.113.1:80") != test.served || len(problems) > 0 != test.problems {
					w.Errorf("problems: %v, kernel:\n%s", problems, w.fake.Dump())
				}
			})
		})
	}
}
