package schedulers

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/e2e/testbed/cluster"
)

// The Service in these tests has shopPorts. closedPort is not a port of the Service, but its pods listen on it.
var (
	shopPorts  = map[cluster.Protocol][]uint16{cluster.TCP: {7080, 7443}, cluster.UDP: {7053, 7080}}
	closedPort = uint16(7999)
)

// TestAllPorts covers affinity that spans all ports of a Service. Other ports must always stay closed.
func TestAllPorts(t *testing.T) {
	w := onWorld(t)
	cluster.NeedPauses(t)
	w.serveShop(t)
	s := shop(w, "shop")
	stop := w.connectUntilStopped(t, s.ips) // before the Service exists
	t.Cleanup(func() { w.remove(t, s.name) })
	s.notes = notes{"affinity-timeout": "10m", "affinity-ports": "all"}
	w.write(t, s.name, s.shopManifest(""))
	for _, node := range w.Nodes {
		w.awaitPorts(t, node, s, 0)
	}

	t.Run("one endpoint for all ports", func(t *testing.T) {
		w.bothFamilies(t, func(t *testing.T, f cluster.Family) {
			for proto, ports := range shopPorts {
				w.sameEndpoint(t, s, proto, f)
				for _, from := range []*cluster.Host{w.inside.Host, w.node1.Host} {
					if one, two := from.Get(t, proto, s.on(f, ports[0]), slowly), from.Get(t, proto, s.on(f, ports[1]), slowly); one.Server != two.Server {
						t.Errorf("%s %s %s: %s answered on one port, %s on another", from.Name, f, proto, one.Server, two.Server)
					}
				}
			}
		})
	})
	t.Run("inspection", func(t *testing.T) { w.showsAllPorts(t, s) })
	stop()
	t.Run("changes under open connections", func(t *testing.T) { w.changeSpan(t) })
	t.Run("beside another Service", func(t *testing.T) { w.sharedAddress(t) })
}

func (w *world) serveShop(t *testing.T) {
	for _, pod := range []*cluster.Pod{w.backends[0].pod, w.backends[10].pod} {
		for proto, ports := range shopPorts {
			for _, port := range append(slices.Clone(ports), closedPort) {
				pod.Serve(t, proto, port, cluster.As(pod.Name))
			}
		}
	}
	for _, proto := range []cluster.Protocol{cluster.TCP, cluster.UDP} {
		w.node1.Serve(t, proto, closedPort, cluster.As("node"))
	}
}

func shop(w *world, name string) service {
	w.services++
	return service{name: name, backends: []*backend{w.backends[0], w.backends[10]}, ips: map[cluster.Family]string{
		cluster.V4: fmt.Sprintf("10.96.1.%d", w.services), cluster.V6: fmt.Sprintf("fd00:10:96::1%02x", w.services),
	}}
}

func (w *world) remove(t *testing.T, name string) {
	t.Helper()
	w.write(t, name, "# nothing\n")
}

func (s service) shopManifest(spec string) string {
	var ports []string
	for _, proto := range []cluster.Protocol{cluster.TCP, cluster.UDP} {
		for _, port := range shopPorts[proto] {
			name := strings.ToLower(fmt.Sprintf("%s-%d", proto, port))
			ports = append(ports, fmt.Sprintf("{name: %s, protocol: %s, port: %d}", name, proto, port))
		}
	}
	var b strings.Builder
	fmt.Fprintf(&b, `
apiVersion: v1
kind: Service
metadata: {name: %s, annotations: %s}
spec:
  clusterIP: "%s"
  clusterIPs: ["%s", "%s"]
  ipFamilies: [IPv4, IPv6]
  ipFamilyPolicy: RequireDualStack
  ports: [%s]
%s
---`, s.name, s.notes.yaml(), s.ips[cluster.V4], s.ips[cluster.V4], s.ips[cluster.V6], strings.Join(ports, ", "), spec)
	for _, f := range []cluster.Family{cluster.V4, cluster.V6} {
		fmt.Fprintf(&b, `
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %s-%d, labels: {kubernetes.io/service-name: %s}}
addressType: %s
ports: [%s]
endpoints:`, s.name, f, s.name, f, strings.Join(ports, ", "))
		for _, e := range s.backends {
			fmt.Fprintf(&b, `
- {addresses: ["%s"], nodeName: %s, conditions: {ready: true}}`, e.pod.Addr(f), e.pod.Node.Name)
		}
		b.WriteString("\n---")
	}
	return b.String()
}

func (s service) on(f cluster.Family, port uint16) string {
	return joinPort(s.ips[f], port)
}

func joinPort(ip string, port uint16) string {
	return netip.AddrPortFrom(netip.MustParseAddr(ip), port).String()
}

// Port 0 is the all-ports server.
func (w *world) awaitPorts(t *testing.T, node *cluster.Node, s service, ports ...uint16) {
	t.Helper()
	cluster.Eventually(t, patience, fmt.Sprintf("%s has virtual servers for the ports %v of %s", node.Name, ports, s.name), func() error {
		servers, err := node.VirtualServers()
		if err != nil {
			return err
		}
		for _, f := range w.FamilyList() {
			have := map[string]bool{}
			for key, server := range servers {
				if _, at, _ := strings.Cut(key, " "); strings.HasPrefix(at, strings.TrimSuffix(joinPort(s.ips[f], 0), "0")) {
					have[at] = len(server.Weights) > 0
				}
			}
			want := map[string]bool{}
			for _, port := range ports {
				want[s.on(f, port)] = true
			}
			if !maps.Equal(have, want) {
				return fmt.Errorf("has %v", slices.Sorted(maps.Keys(have)))
			}
		}
		return nil
	})
	for _, f := range w.FamilyList() { // not TCP: the kernel would keep the connection entry for minutes
		w.inside.Await(t, patience, cluster.UDP, s.on(f, shopPorts[cluster.UDP][1]))
	}
}

func (w *world) sameEndpoint(t *testing.T, s service, proto cluster.Protocol, f cluster.Family) {
	t.Helper()
	const clients = 40
	first := w.ask(t, proto, f, s.on(f, shopPorts[proto][0]), upTo(clients))
	second := w.ask(t, proto, f, s.on(f, shopPorts[proto][1]), upTo(clients))
	if n := moved(first, second); n > 0 {
		t.Errorf("%s %s: %d of %d clients reached another endpoint on the second port", f, proto, n, clients)
	}
	if len(count(first)) != 2 {
		t.Errorf("%s %s: all clients reached %v", f, proto, count(first))
	}
}

// connectUntilStopped connects to the closed port until stop is called. An answer fails the test.
func (w *world) connectUntilStopped(t *testing.T, ips map[cluster.Family]string) (stop func()) {
	end, once := make(chan struct{}), sync.Once{}
	var clients sync.WaitGroup
	tries := 0
	var mu sync.Mutex
	for _, from := range []*cluster.Host{w.client, w.inside.Host, w.node1.Host} {
		for _, f := range w.FamilyList() {
			for _, proto := range []cluster.Protocol{cluster.TCP, cluster.UDP} {
				clients.Go(func() {
					for {
						r := from.Probe(proto, joinPort(ips[f], closedPort), cluster.Within(300*time.Millisecond))
						if r.Outcome == cluster.Answered || r.Connected {
							t.Errorf("%s: %s %s: a port that does not belong to the Service answered: %s", from.Name, f, proto, r)
						}
						mu.Lock()
						tries++
						mu.Unlock()
						select {
						case <-end:
							return
						case <-time.After(50 * time.Millisecond):
						}
					}
				})
			}
		}
	}
	stop = func() {
		once.Do(func() { close(end) })
		clients.Wait()
	}
	t.Cleanup(func() {
		stop()
		t.Logf("%d attempts at closed ports", tries)
	})
	return stop
}

// changeSpan changes the affinity while 100 connections to one port are open.
func (w *world) changeSpan(t *testing.T) {
	s := shop(w, "shop-changes")
	t.Cleanup(func() { w.remove(t, s.name) })
	stop := w.connectUntilStopped(t, s.ips)
	each, busy := append(slices.Clone(shopPorts[cluster.TCP]), shopPorts[cluster.UDP]...), shopPorts[cluster.TCP][0]
	s.notes = notes{"affinity-timeout": "10m", "affinity-ports": "all"}
	w.write(t, s.name, s.shopManifest(""))
	w.awaitPorts(t, w.node1, s, 0)
	for _, step := range []struct {
		span       string
		have, then []uint16 // while the connections are open, and afterwards
	}{
		{"each", append([]uint16{0}, each...), each},
		{"all", []uint16{0, busy}, []uint16{0}},
	} {
		var flows []*cluster.Flows
		for _, f := range w.FamilyList() {
			flows = append(flows, w.client.OpenFlows(t, 50, cluster.TCP, s.on(f, busy),
				cluster.FlowConfig{Every: time.Second, Within: 20 * time.Second, Max: 10 * time.Minute}))
		}
		s.notes = s.notes.with("affinity-ports", step.span)
		w.write(t, s.name, s.shopManifest(""))
		w.awaitPorts(t, w.node1, s, step.have...)
		for _, f := range w.FamilyList() {
			w.sameService(t, s, f)
		}
		for _, f := range flows {
			f.AwaitRound(t, patience)
			if r := f.Report(); r.Broken+r.Lost+r.Moved > 0 || r.Flows != 50 {
				t.Errorf("affinity of %s: %+v", step.span, r)
			}
		}
		// A reset connection expires after ten seconds, but a closed connection only after two minutes.
		for _, f := range w.FamilyList() {
			w.client.MustRun(t, "ss", "--kill", "--tcp", "dst", strings.TrimSuffix(s.on(f, 0), ":0"))
		}
		for _, f := range flows {
			f.Stop()
		}
		w.awaitPorts(t, w.node1, s, step.then...)
	}
	stop()
}

// sameService keeps its TCP connections open, because closed connections would stay in the table for two minutes.
func (w *world) sameService(t *testing.T, s service, f cluster.Family) {
	t.Helper()
	for _, port := range shopPorts[cluster.UDP] {
		w.client.Get(t, cluster.UDP, s.on(f, port), slowly)
	}
	for _, port := range shopPorts[cluster.TCP] {
		w.client.Open(t, cluster.TCP, s.on(f, port), slowly).MustPing(t) // the client's reset ends this connection too
	}
}

// sharedAddress creates two Services that share an external IP. One of them has an all-ports server. Other ports
// stay closed.
func (w *world) sharedAddress(t *testing.T) {
	ips := map[cluster.Family]string{cluster.V4: "10.96.7.1", cluster.V6: "fd00:10:96::701"}
	spec := fmt.Sprintf("  externalIPs: [%q, %q]", ips[cluster.V4], ips[cluster.V6])
	stop := w.connectUntilStopped(t, ips)
	first := shop(w, "shop-first")
	first.notes = notes{"affinity-timeout": "10m", "affinity-ports": "all"}
	second := w.service(t, "second", notes{"scheduler": "rr"}, w.backends[8:9]) // port 80
	t.Cleanup(func() { w.remove(t, first.name) })
	w.write(t, first.name, first.shopManifest(spec))
	outside := first
	outside.ips = ips
	w.awaitPorts(t, w.node1, outside, 0)
	w.write(t, second.name, strings.Replace(second.manifest(), "\nspec:", "\nspec:\n"+spec, 1))
	w.awaitPorts(t, w.node1, outside, 0, 80)
	w.bothFamilies(t, func(t *testing.T, f cluster.Family) {
		w.sameEndpoint(t, outside, cluster.TCP, f)
		for _, proto := range []cluster.Protocol{cluster.TCP, cluster.UDP} {
			if r := w.client.Await(t, patience, proto, joinPort(ips[f], 80)); r.Server != second.backends[0].name {
				t.Errorf("%s: port 80 of the other Service was answered by %s", proto, r.Server)
			}
		}
	})
	w.put(t, second)
	w.awaitPorts(t, w.node1, outside, 0)
	for _, f := range w.FamilyList() {
		w.client.MustRefuse(t, cluster.TCP, joinPort(ips[f], 80), slowly)
	}
	stop()
}

func (w *world) showsAllPorts(t *testing.T, s service) {
	for _, f := range w.FamilyList() {
		at := s.on(f, shopPorts[cluster.TCP][1])
		table := w.inspect(t, w.node1, "services", "default/"+s.name)
		for _, text := range []string{at + "/tcp", "affinity ports", "annotation kube-ipvs.io/affinity-ports"} {
			if !strings.Contains(table, text) {
				t.Errorf("services does not show %q:\n%s", text, table)
			}
		}
		way := w.inspect(t, w.node1, "explain", "-v", at+"/TCP", "--from", w.client.Addr(f).String())
		for _, text := range []string{"-t " + strings.Replace(at, fmt.Sprint(":", shopPorts[cluster.TCP][1]), ":0", 1), s.backends[0].pod.At(f, shopPorts[cluster.TCP][1])} {
			if !strings.Contains(way, text) {
				t.Errorf("explain does not show %q:\n%s", text, way)
			}
		}
		closed := w.inspect(t, w.node1, "explain", s.on(f, closedPort)+"/TCP", "--from", w.client.Addr(f).String())
		if !strings.Contains(closed, "unserved port") {
			t.Errorf("explain does not report that the port is closed:\n%s", closed)
		}
	}
	if out := w.node1.MustRun(t, cluster.AgentBinary(t), "ipvsadm", "-Ln"); !strings.Contains(out, s.on(cluster.V4, 0)+" rr persistent 600") {
		t.Errorf("ipvsadm:\n%s", out)
	}
}

// inspect ignores the exit status, which depends on the findings.
func (w *world) inspect(t *testing.T, node *cluster.Node, args ...string) string {
	t.Helper()
	out, err := node.Run(append(append([]string{cluster.AgentBinary(t)}, args...), "--status-socket", w.socket(node))...)
	if out == "" {
		t.Fatalf("%v: %v", args, err)
	}
	return out
}
