package inspect

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

func TestFlows(t *testing.T) {
	s := newStage(t)
	flows := s.node.MustStart(t, s.binary, "flows", "default/plain", "-o", "json", "--limit", "6", "--status-socket", s.socket)
	t.Cleanup(flows.Kill)
	var conns []*cluster.Conn
	events := func() (all []view.FlowEvent, err error) {
		for line := range strings.Lines(flows.Log()) {
			var e view.FlowEvent
			if err := json.Unmarshal([]byte(line), &e); err != nil {
				return nil, fmt.Errorf("%w: %s", err, line)
			}
			all = append(all, e)
		}
		return all, nil
	}
	cluster.Eventually(t, patience, "the first event arrives", func() error {
		conns = append(conns, s.client.Open(t, cluster.TCP, plainIP+":80"))
		all, err := events()
		if err == nil && len(all) == 0 {
			err = fmt.Errorf("there is no event yet")
		}
		return err
	})
	for _, c := range conns {
		c.Close()
	}
	s.node.MustRun(t, "conntrack", "-D", "-d", plainIP)
	cluster.Eventually(t, patience, "a connection's end is reported", func() error {
		all, err := events()
		for _, e := range all {
			if e.Name != "plain" || e.Virtual.String() != plainIP+":80" || e.Client.Addr() != s.client.V4 || e.Endpoint.Port() != 8080 {
				t.Fatalf("%+v", e)
			}
			if e.Event == view.FlowEnded {
				return err
			}
		}
		return fmt.Errorf("%d events, but none reports the end of a connection; %w", len(all), err)
	})
}
