package cluster

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// Programs that are not installed are skipped.
var (
	dumpHost = [][]string{
		{"ip", "addr"},
		{"ip", "-4", "route"},
		{"ip", "-6", "route"},
		{"ss", "-tuanp"},
	}
	dumpNode = [][]string{ // also for the router
		{"ipvsadm", "-Ln"},
		{"ip", "rule"},
		{"ip", "neigh"},
		{"ipset", "list", "-t"},
		{"nft", "list", "table", "inet", "kube-ipvs"},
		{"iptables-save", "-c"},
		{"iptables-legacy-save", "-c"},
		{"ip6tables-save", "-c"},
		{"ip6tables-legacy-save", "-c"},
		{"conntrack", "-L"},
		{"conntrack", "-L", "-f", "ipv6"},
	}
)

// DumpHost writes the state of a host. Each part is truncated to limit bytes; 0 means no limit.
func (h *Host) DumpHost(w io.Writer, limit int) {
	fmt.Fprintf(w, "=== %s (%s)\n", h.Name, h.Namespace())
	commands := dumpHost
	if slices.Contains(h.cluster.dumped(false), h) {
		commands = slices.Concat(dumpNode, dumpHost)
	}
	for _, args := range commands {
		if _, err := exec.LookPath(args[0]); err != nil {
			continue
		}
		out, err := h.RunCommand(Command{Args: args, Within: 20 * time.Second})
		out = strings.TrimRight(out, "\n")
		switch {
		case err != nil:
			fmt.Fprintf(w, "--- %s\n%s\n", strings.Join(args, " "), head(err.Error(), limit))
		case out != "":
			fmt.Fprintf(w, "--- %s\n%s\n", strings.Join(args, " "), head(out, limit))
		}
	}
	h.mu.Lock()
	all := make([]owned, 0, len(h.owned))
	for o := range h.owned {
		all = append(all, o)
	}
	h.mu.Unlock()
	for _, o := range all {
		dumpOwned(w, o, limit)
	}
}

func head(s string, limit int) string {
	if limit > 0 && len(s) > limit {
		return s[:limit] + fmt.Sprintf("\n[cut: %d more bytes]\n", len(s)-limit)
	}
	return s
}

func dumpOwned(w io.Writer, o owned, limit int) {
	switch o := o.(type) {
	case *Process:
		log := o.Log()
		if limit > 0 && len(log) > limit {
			log = "[earlier lines cut]\n" + log[len(log)-limit:]
		}
		state := "running"
		if !o.Running() {
			state = fmt.Sprintf("ended: %v", o.err)
		}
		fmt.Fprintf(w, "--- process %s (%s)\n%s\n", o.Name, state, strings.TrimRight(log, "\n"))
	case *Server:
		fmt.Fprintf(w, "--- server %s %s %d: requests by source %v\n", o.Name, o.Proto, o.Port, o.Sources())
	case *Flows:
		fmt.Fprintf(w, "--- %s: %s\n", o.what, o.Report())
	}
}

// Dump writes the state of the router and all nodes and, if pods is true, of every pod and client.
func (c *Cluster) Dump(w io.Writer, pods bool, limit int) {
	for _, h := range c.dumped(pods) {
		h.DumpHost(w, limit)
	}
}

func (c *Cluster) dumped(pods bool) []*Host {
	if pods {
		c.mu.Lock()
		defer c.mu.Unlock()
		return append([]*Host(nil), c.hosts...)
	}
	hosts := []*Host{c.Router}
	for _, n := range c.Nodes {
		hosts = append(hosts, n.Host)
	}
	return hosts
}

// dumpFor writes the state of a failed test to $LAB_OUT/<test>/, or to the test's log.
func (c *Cluster) dumpFor(t testing.TB) {
	if out := os.Getenv("LAB_OUT"); out != "" {
		dir := filepath.Join(out, strings.NewReplacer("/", "_", " ", "_").Replace(t.Name()))
		err := os.MkdirAll(dir, 0o755)
		for _, h := range c.dumped(true) {
			if err != nil {
				break
			}
			var text strings.Builder
			h.DumpHost(&text, 0)
			err = os.WriteFile(filepath.Join(dir, h.Name+".txt"), []byte(text.String()), 0o644)
		}
		if err == nil {
			t.Logf("state of the cluster: %s", dir)
			return
		}
		t.Logf("state of the cluster: %v", err)
	}
	var text strings.Builder
	c.Dump(&text, false, 8<<10)
	t.Logf("state of the cluster (set LAB_OUT to a directory to get the full output):\n%s", text.String())
}
