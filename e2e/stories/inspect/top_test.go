package inspect

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
)

func TestTop(t *testing.T) {
	s := newStage(t)
	var conns []*cluster.Conn
	for range 6 {
		conns = append(conns, s.client.Open(t, cluster.TCP, plainIP+":80"))
	}
	list := runJSON[inspect.TopList](t, s, "top", "default/plain", "--interval", "1s")
	if plain := list.Items[0]; plain.Active != 6 || len(plain.Endpoints) != 3 || plain.Endpoints[0].Share < 0.3 || plain.Endpoints[0].Share > 0.4 {
		t.Errorf("top of 6 connections to 3 endpoints: %+v", plain)
	}

	terminal := func(args ...string) string {
		return s.node.MustRun(t, append([]string{"tmux", "-u", "-S", filepath.Join(s.dir, "tmux")}, args...)...)
	}
	terminal("new-session", "-d", "-s", "top", "-x", "160", "-y", "30", s.binary, "top", "--status-socket", s.socket)
	t.Cleanup(func() { _, _ = s.node.Run("tmux", "-S", filepath.Join(s.dir, "tmux"), "kill-server") })
	shows := func(has, lacks string) {
		t.Helper()
		cluster.Eventually(t, patience, fmt.Sprintf("the terminal shows %q, not %q", has, lacks), func() error {
			if picture := terminal("capture-pane", "-p", "-t", "top"); !strings.Contains(picture, has) || lacks != "" && strings.Contains(picture, lacks) {
				return fmt.Errorf("the terminal shows\n%s", picture)
			}
			return nil
		})
	}
	shows("sorted by CONN/S", "default/here")
	terminal("send-keys", "-t", "top", "e")
	shows("default/here", "")
	terminal("send-keys", "-t", "top", "/", "p", "l", "a", "i", "n", "6", "Enter")
	shows("filter: plain6", "10.96.0.10:80")
	terminal("send-keys", "-t", "top", "h")
	shows("scroll", plain6IP)
	terminal("resize-window", "-t", "top", "-x", "40", "-y", "8")
	shows("kube-ipvs top", "CONN/S   PKT/S")
	terminal("send-keys", "-t", "top", "q")
	cluster.Eventually(t, patience, "top ends", func() error {
		if out, err := s.node.Run("tmux", "-S", filepath.Join(s.dir, "tmux"), "list-sessions"); err == nil {
			return fmt.Errorf("sessions: %s", out)
		}
		return nil
	})
	for _, c := range conns {
		c.MustPing(t)
		c.Close()
	}
}
