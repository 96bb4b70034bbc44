package doctor

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"strings"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/iptables"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

var noon = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// node is a fake host with the facts about it. Each test breaks one thing.
type node struct {
	files     map[string]string
	answers   map[string]Answer
	left      []kernel.Leftover
	clock     error
	wrong     bool // no time service corrects the clock
	links     []kernel.Interface
	addresses []kernel.Pod
	server    string // the API server's address as a pod receives it
	chain     [][]byte
	log       string
	programs  int
	entries   []kernel.Neighbor
	queues    []kernel.Queue
	Facts
}

func (n *node) Leftovers() ([]kernel.Leftover, error) { return n.left, nil }

func (n *node) ClockSynchronized() (bool, error) { return !n.wrong, n.clock }

func (n *node) Interfaces() ([]kernel.Interface, error) { return n.links, nil }

func (n *node) Pods() ([]kernel.Pod, error) { return n.addresses, nil }

func (n *node) APIServer() string { return n.server }

func (n *node) ServerCertificates(address, _ string) ([][]byte, error) {
	if address != "10.96.0.1:443" && address != "192.0.2.10:6443" {
		return nil, fmt.Errorf("dial %s: connection refused", address)
	}
	return n.chain, nil
}

func (n *node) KernelLog() (string, error) { return n.log, nil }

func (n *node) Tail(name string) ([]byte, error) { return n.ReadFile(name) }

func (n *node) ConnectPrograms() (int, error) { return n.programs, nil }

func (n *node) Neighbors() ([]kernel.Neighbor, error) { return n.entries, nil }

func (n *node) Queues() ([]kernel.Queue, error) { return n.queues, nil }

// link adds an interface, or replaces an interface of the same name.
func (n *node) link(i kernel.Interface) {
	for at := range n.links {
		if n.links[at].Name == i.Name {
			n.links[at] = i
			return
		}
	}
	n.links = append(n.links, i)
}

func (n *node) tunnel(mtu, uplink int) {
	n.link(kernel.Interface{Name: "eth0", Kind: "device", MTU: uplink, Up: true, Addressed: true})
	n.link(kernel.Interface{Name: "flannel.1", Kind: "vxlan", MTU: mtu, Up: true, Addressed: true})
}

func (n *node) pods(mtu int) {
	n.link(kernel.Interface{Name: "cni0", Kind: "bridge", MTU: mtu, Up: true, Addressed: true})
	n.link(kernel.Interface{Name: "veth1", Kind: "veth", MTU: mtu, Up: true, Master: "cni0", Container: true})
}

// second adds a second interface, without a default route.
func (n *node) second() {
	n.link(kernel.Interface{Name: "eth1", Kind: "device", MTU: 1500, Up: true, Addressed: true})
}

func (n *node) arp(ignore, announce string) {
	n.files["/proc/sys/net/ipv4/conf/all/arp_ignore"], n.files["/proc/sys/net/ipv4/conf/all/arp_announce"] = ignore, announce
}

func (n *node) ReadFile(name string) ([]byte, error) {
	text, ok := n.files[name]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return []byte(text), nil
}

func (n *node) Names(dir string) ([]string, error) {
	var names []string
	for file := range n.files {
		if rest, ok := strings.CutPrefix(file, dir+"/"); ok {
			name, _, _ := strings.Cut(rest, "/")
			names = append(names, name)
		}
	}
	return names, nil
}

func (n *node) Get(url string) (int, string, error) {
	a, ok := n.answers[url]
	if !ok {
		return 0, "", errors.New("connection refused")
	}
	return a.Status, a.Body, nil
}

const (
	routes    = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\neth0\t00000000\t0102A8C0\t0003\t0\t0\t0\t00000000\n"
	route6    = "00000000000000000000000000000000 00 00000000000000000000000000000000 00 fe800000000000000000000000000001 00000400 00000001 00000000 %s     eth0\n"
	lookback6 = "00000000000000000000000000000000 00 00000000000000000000000000000000 00 00000000000000000000000000000000 ffffffff 00000001 00000000 00200200       lo\n"
	stat      = "entries  allocs   destroys\n%08x  00000000 00000000\n%08x  00000000 00000000\n"
)

// itsJump is a jump that kube-proxy left behind.
var itsJump = kernel.Leftover{Place: "nft", Family: inet.IPv4, ChainID: kernel.ChainID{Table: "nat", Chain: "PREROUTING"}, Spec: "-j KUBE-SERVICES"}

// well returns a node without defects.
func well() *node {
	contact := noon.Add(-time.Minute)
	ca, token := authority("ca", noon.AddDate(10, 0, 0)), jwt(noon.Add(-10*time.Minute), noon.Add(50*time.Minute))
	return &node{
		files: map[string]string{
			"/etc/os-release":                             "NAME=Debian\n",
			"/proc/modules":                               "ip_vs 200704 2 - Live 0x0\nbr_netfilter 32768 0 - Live 0x0\n",
			"/proc/net/ip_vs":                             "IP Virtual Server version 1.2.1 (size=4096)\n",
			"/proc/net/route":                             routes,
			"/proc/net/ipv6_route":                        lookback6,
			"/proc/net/snmp":                              "Ip: Forwarding OutNoRoutes\nIp: 1 5\n",
			"/proc/net/netstat":                           "TcpExt: SyncookiesSent IPReversePathFilter\nTcpExt: 0 7\n",
			"/proc/net/dev":                               "Inter-|   Receive\n face |bytes\n  eth0: 1 2 0 0 0 0 0 0 3 4 0 5 0 0 0 0\n",
			"/proc/uptime":                                "86400.25 170000.00\n",
			"/proc/1/comm":                                "systemd\n",
			"/proc/42/comm":                               "kube-ipvs\n",
			"/proc/self/comm":                             "kube-proxy\n", // not a number: a symbolic link to a process directory
			"/proc/meminfo":                               "MemTotal:  1000000 kB\nMemAvailable:  600000 kB\n",
			"/proc/sys/" + keepalive:                      "600\n",
			"/proc/sys/" + conntrackCount:                 "1000\n",
			"/proc/sys/" + conntrackMax:                   "262144\n",
			"/proc/sys/" + localPorts:                     "32768\t60999\n",
			"/proc/sys/" + reservedPorts:                  "\n",
			"/proc/sys/net/ipv4/ip_forward":               "1\n",
			"/proc/sys/net/ipv4/neigh/default/gc_thresh3": "1024\n",
			"/proc/sys/net/ipv6/neigh/default/gc_thresh3": "1024\n",
			"/proc/net/stat/arp_cache":                    fmt.Sprintf(stat, 40, 40),
			"/proc/net/stat/ndisc_cache":                  fmt.Sprintf(stat, 40, 40),
			"/etc/modules-load.d/k8s.conf":                "overlay\nbr-netfilter\n",
			serviceAccount + "ca.crt":                     string(ca.pem),
			serviceAccount + "token":                      token,
		},
		answers: map[string]Answer{
			"http://127.0.0.1:10256/livez": {Status: 200}, "http://127.0.0.1:10256/readyz": {Status: 200}, "http://127.0.0.1:10249/metrics": {Status: 200},
		},
		links: []kernel.Interface{
			{Name: "lo", Index: 1, Kind: "device", MTU: 65536, Up: true, Addressed: true},
			{Name: "eth0", Index: 2, Kind: "device", MTU: 1500, Up: true, Addressed: true},
			{Name: kernel.Device, Index: 7, Kind: "dummy", MTU: 1500, Addressed: true},
		},
		server: "10.96.0.1:443", chain: [][]byte{ca.issue("kubernetes", noon.AddDate(1, 0, 0)).der},
		Facts: Facts{
			Now: noon, Release: "6.1.0-1-amd64",
			View: &view.View{
				Time:    noon,
				Agent:   view.Agent{Synced: true},
				Node:    view.Node{PID: 42, Started: noon.Add(-time.Hour), ReservesNodePorts: true},
				Sources: []view.Source{{Name: "Service", LastContact: &contact}, {Name: "manifests"}},
				Base:    view.Base{Sysctls: []view.Sysctl{{Name: "net/ipv4/ip_forward", Value: "1"}}},
			},
			Rules: map[inet.Family]kernel.RuleListing{inet.IPv4: {Rules: map[kernel.ChainID][]kernel.SavedRule{}}},
		},
	}
}

func (n *node) set(name, value string) {
	n.View.Node.Settings = append(n.View.Node.Settings, view.Setting{Name: name, Value: value})
}

func (n *node) balance() { n.View.Node.Mode = kernel.NFTablesOnly }

// forward makes FORWARD drop all packets that the given rules do not accept.
func (n *node) forward(specs ...string) {
	l := n.Rules[inet.IPv4]
	l.Policies = map[kernel.ChainID]string{forward: "DROP"}
	for _, spec := range specs {
		l.Rules[forward] = append(l.Rules[forward], iptables.ParseRule(forward, spec))
	}
	n.Rules[inet.IPv4] = l
}

// kubeconfig gives the agent a kubeconfig with a valid current context and another context with expired certificates.
func (n *node) kubeconfig(cluster, user string) {
	old := base64.StdEncoding.EncodeToString(authority("old", noon.AddDate(-1, 0, 0)).pem)
	n.files["/etc/kubeconfig"] = "current-context: here\ncontexts:\n- {name: there, context: {cluster: there, user: there}}\n- {name: here, context: {cluster: here, user: here}}\n" +
		"clusters:\n- {name: there, cluster: {server: 'https://192.0.2.99', certificate-authority-data: " + old + "}}\n- name: here\n  cluster:\n    " +
		cluster + "\nusers:\n- {name: there, user: {client-certificate-data: " + old + "}}\n- name: here\n  user:\n    " + user + "\n"
	n.set("clientConnection.kubeconfig", "/etc/kubeconfig")
}

func (n *node) certificate(ends time.Time) {
	n.kubeconfig("server: https://192.0.2.10:6443", "client-certificate-data: "+base64.StdEncoding.EncodeToString(authority("agent", ends).pem))
}

func (n *node) authorities(all ...issuer) {
	n.files[serviceAccount+"ca.crt"] = ""
	for _, ca := range all {
		n.files[serviceAccount+"ca.crt"] += string(ca.pem)
	}
}

func (n *node) serve(c issuer) { n.chain = [][]byte{c.der} }

func jwt(begins, ends time.Time) string {
	claims, err := json.Marshal(map[string]int64{"iat": begins.Unix(), "nbf": begins.Unix(), "exp": ends.Unix()})
	if err != nil {
		panic(err)
	}
	return "e30." + base64.RawURLEncoding.EncodeToString(claims) + ".c2ln\n"
}

type issuer struct {
	cert     *x509.Certificate
	key      *ecdsa.PrivateKey
	der, pem []byte
}

func authority(name string, ends time.Time) issuer { return issuer{}.issue(name, ends) }

func (i issuer) issue(name string, ends time.Time) issuer {
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: noon.AddDate(-1, 0, 0), NotAfter: ends,
		IsCA: i.cert == nil, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	parent, parentKey := template, key
	if i.cert != nil {
		parent, parentKey = i.cert, i.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), parentKey)
	if err != nil {
		panic(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		panic(err)
	}
	return issuer{cert, key, der, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}
