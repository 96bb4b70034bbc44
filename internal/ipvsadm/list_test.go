package ipvsadm

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

func svc(k *kernel.TableKey, scheduler string, more func(*kernel.TableServer), d ...kernel.TableDestination) kernel.TableServer {
	s := kernel.TableServer{Key: *k, Scheduler: scheduler, Netmask: 1<<32 - 1, Destinations: d}
	if k.Family == inet.IPv6 {
		s.Netmask = 128
	}
	if more != nil {
		more(&s)
	}
	return s
}

func persistent(timeout, mask uint32) func(*kernel.TableServer) {
	return func(s *kernel.TableServer) {
		s.Flags |= kernel.FlagPersistent
		s.Timeout = timeout
		if mask != 0 {
			s.Netmask = mask
		}
	}
}

func flagged(flags uint32) func(*kernel.TableServer) {
	return func(s *kernel.TableServer) { s.Flags |= flags }
}

func dst(address string, f kernel.Forwarding, weight uint32) kernel.TableDestination {
	return kernel.TableDestination{Addr: netip.MustParseAddrPort(address), Forwarding: f, Weight: weight}
}

func mark(family inet.Family, n uint32) *kernel.TableKey {
	return &kernel.TableKey{Family: family, Mark: n}
}

// captured returns the table for which the packaged program's output was recorded, in the kernel's order, with marks
// last.
func captured() kernel.Table {
	gue := dst("10.244.2.3:80", kernel.ForwardTunnel, 1)
	gue.Tunnel = kernel.Tunnel{Type: kernel.TunnelGUE, Port: 6080, Flags: kernel.TunnelChecksum}
	limited := dst("10.244.1.5:8080", kernel.ForwardMasq, 1)
	limited.UpperThreshold, limited.LowerThreshold, limited.Persistent, limited.Active = 1000, 700, 1, 3
	limited.Stats = kernel.Counters{Connections: 1, InPackets: 1285, OutPackets: 2792, InBytes: 16844044, OutBytes: 134362920,
		ConnectionRate: 2, InPacketRate: 10, OutPacketRate: 7, InByteRate: 709, OutByteRate: 1866}
	return kernel.Table{Info: kernel.TableInfo{Version: 0x010201, ConnSize: 4096}, Servers: []kernel.TableServer{
		svc(key(inet.SCTP, "10.96.7.7:36412"), "wlc", nil),
		svc(key(inet.TCP, "[fd00:10:96::1]:443"), "rr", nil,
			dst("[2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff]:6443", kernel.ForwardMasq, 1), dst("[fd00:10:244:1::5]:6443", kernel.ForwardMasq, 1)),
		svc(key(inet.TCP, "10.96.0.84:80"), "rr", flagged(kernel.FlagSched1|kernel.FlagSched2|kernel.FlagSched3)),
		svc(key(inet.TCP, "10.96.0.83:80"), "mh", flagged(kernel.FlagSched3)),
		svc(key(inet.TCP, "10.96.0.81:80"), "sh", func(s *kernel.TableServer) {
			persistent(10800, 0xffffff00)(s)
			flagged(kernel.FlagSched1 | kernel.FlagSched2)(s)
		}),
		svc(key(inet.TCP, "10.96.0.80:80"), "lc", persistent(360, 0), limited),
		svc(key(inet.TCP, "203.0.113.9:65535"), "fo", nil, dst("10.244.0.9:65535", kernel.ForwardRoute, 5)),
		svc(key(inet.TCP, "10.96.1.1:80"), "lblc", nil, gue),
		svc(key(inet.UDP, "203.0.113.9:5060"), "ovf", func(s *kernel.TableServer) {
			persistent(60, 0)(s)
			s.Engine = "sip"
		}),
		svc(key(inet.UDP, "[fd00:10:96::a]:53"), "rr", persistent(10800, 64)),
		svc(key(inet.UDP, "10.96.0.10:53"), "rr", flagged(kernel.FlagOnePacket), dst("10.244.0.3:53", kernel.ForwardMasq, 0)),
		svc(mark(inet.IPv4, 1<<32-1), "rr", nil),
		svc(mark(inet.IPv6, 2), "wlc", persistent(600, 64)),
		svc(mark(inet.IPv4, 1), "rr", nil),
	}}
}

const title = "IP Virtual Server version 1.2.1 (size=4096)\n"

func TestList(t *testing.T) {
	want := title + `Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port           Forward Weight ActiveConn InActConn
FWM  -1 rr
TCP  203.0.113.9:65535 fo
  -> 10.244.0.9:65535             Route   5      0          0         
TCP  10.96.0.80:80 lc persistent 360
  -> 10.244.1.5:8080              Masq    1      3          0         
TCP  10.96.0.81:80 sh (sh-fallback,sh-port) persistent 10800 mask 255.255.255.0
TCP  10.96.0.83:80 mh ()
TCP  10.96.0.84:80 rr (flag-1,flag-2,flag-3)
TCP  10.96.1.1:80 lblc
  -> 10.244.2.3:80                Tunnel  1      0          0         
UDP  203.0.113.9:5060 ovf persistent 60 pe sip
UDP  10.96.0.10:53 rr ops
  -> 10.244.0.3:53                Masq    0      0          0         
SCTP 10.96.7.7:36412 wlc
TCP  [fd00:10:96::1]:443 rr
  -> [fd00:10:244:1::5]:6443      Masq    1      0          0         
  -> [2001:db8:aaaa:bbbb:cccc:dddd:eeee:ffff]:6443 Masq    1      0          0         
UDP  [fd00:10:96::a]:53 rr persistent 10800 mask 64
FWM  1 rr
FWM  2 IPv6 wlc persistent 600 mask 64
`
	if diff := cmp.Diff(want, PrintTable(Request{Numeric: true}, captured(), testNames{})); diff != "" {
		t.Error(diff)
	}
}

func TestSave(t *testing.T) {
	got := PrintTable(Request{Command: Save, Numeric: true}, captured(), testNames{})
	for _, want := range []string{
		"-A -t 10.96.0.81:80 -s sh -p 10800 -M 255.255.255.0 -b sh-fallback,sh-port\n",
		"-a -t 10.96.1.1:80 -r 10.244.2.3:80 -i -w 1 --tun-type gue --tun-port 6080 --tun-csum\n",
		"-A -u 203.0.113.9:5060 -s ovf -p 60 --pe sip\n",
		"-A -t 10.96.0.83:80 -s mh -b \n",
		"-A -u 10.96.0.10:53 -s rr -o\n",
		"-A -f 2 -6 -s wlc -p 600 -M 64\n",
		"-A -f -1 -s rr\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}

func TestViews(t *testing.T) {
	only := captured()
	only.Servers = slices.DeleteFunc(only.Servers, func(s kernel.TableServer) bool { return s.Scheduler != "lc" && s.Scheduler != "lblc" })
	for _, c := range []struct {
		request Request
		lines   []string
	}{
		{Request{View: viewStats}, []string{
			"Prot LocalAddress:Port               Conns   InPkts  OutPkts  InBytes OutBytes", "  -> RemoteAddress:Port",
			"  -> 10.244.1.5:8080                     1     1285     2792 16844044  134362K"}},
		{Request{View: viewStats, Exact: true}, []string{
			"  -> 10.244.1.5:8080                     1     1285     2792 16844044 134362920"}},
		{Request{View: viewRate}, []string{
			"Prot LocalAddress:Port                 CPS    InPPS   OutPPS    InBPS   OutBPS",
			"  -> 10.244.1.5:8080                     2       10        7      709     1866"}},
		{Request{View: viewThresholds}, []string{
			"Prot LocalAddress:Port            Uthreshold Lthreshold ActiveConn InActConn ",
			"  -> 10.244.1.5:8080              1000       700        3          0         "}},
		{Request{View: viewPersistentConn}, []string{
			"Prot LocalAddress:Port            Weight    PersistConn ActiveConn InActConn ",
			"  -> 10.244.1.5:8080              1         1           3          0         "}},
		{Request{View: viewTunnel}, []string{
			"  -> RemoteAddress:Port           Forward TunnelInfo    Weight ActiveConn InActConn",
			"  -> 10.244.1.5:8080              Masq    n/a           1      3          0         ",
			"  -> 10.244.2.3:80                Tunnel  gue:6080:+c   1      0          0         "}},
	} {
		c.request.Numeric = true
		got := strings.Split(PrintTable(c.request, only, testNames{}), "\n")
		for _, line := range c.lines {
			if !slices.Contains(got, line) {
				t.Errorf("view %d: no line %q in\n%s", c.request.View, line, strings.Join(got, "\n"))
			}
		}
	}
}

func TestNames(t *testing.T) {
	table := kernel.Table{Servers: []kernel.TableServer{
		svc(key(inet.TCP, "10.9.9.9:8080"), "rr", nil, dst("10.9.9.7:12345", kernel.ForwardMasq, 1)),
		svc(key(inet.TCP, "[fd00::99]:8080"), "rr", nil, dst("[fd00::99]:80", kernel.ForwardMasq, 1)),
		svc(mark(inet.IPv4, 3), "rr", nil, dst("10.9.9.7:8080", kernel.ForwardMasq, 1)),
	}}
	want := `Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port           Forward Weight ActiveConn InActConn
TCP  a-very-long-host-name-that-g rr
  -> short:12345                  Masq    1      0          0         
TCP  [v6name.example.org]:http-alt rr
  -> [v6name.example.org]:http    Masq    1      0          0         
FWM  3 rr
  -> short:8080                   Masq    1      0          0         
`
	if diff := cmp.Diff(want, PrintTable(Request{Service: &kernel.TableKey{}}, table, testNames{})); diff != "" {
		t.Error(diff)
	}
	save := PrintTable(Request{Command: Save}, table, testNames{})
	if want := "-A -t a-very-long-host-name-that-goes-on.example.org:http-alt -s rr\n"; !strings.HasPrefix(save, want) {
		t.Errorf("save begins with %q, want %q", save, want)
	}
}

func TestAbbreviated(t *testing.T) {
	for n, want := range map[uint64]string{
		0: "        0", 99999999: " 99999999", 1e8: "  100000K", 999999999: "  999999K", 1e9: "    1000M", 1e11 - 1: "   99999M",
		1e11: "     100G", 1e14 - 1: "   99999G", 1e14: "     100T", 1<<64 - 1: "18446744T",
	} {
		if got := abbreviated(n); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}

// TestConnectionsWithAnEngine uses rows captured from the packaged program. Their columns do not match the headings.
func TestConnectionsWithAnEngine(t *testing.T) {
	at := netip.MustParseAddrPort
	conns := []kernel.Connection{
		{Protocol: "UDP", Client: at("127.0.0.1:0"), Virtual: at("127.100.100.100:50000"), Destination: at("127.100.100.101:50000"), State: "NONE",
			Expires: 70, Engine: "sip", EngineData: "12345678@127.0.0.1"},
		{Protocol: "UDP", Client: at("[::1]:0"), Virtual: at("[::1]:5060"), Destination: at("[::1]:5061"), State: "NONE", Expires: 53,
			Engine: "sip", EngineData: "a"},
		{Protocol: "UDP", Client: at("127.0.0.1:39480"), Virtual: at("127.0.0.2:5060"), Destination: at("127.0.0.1:5060"), State: "UDP", Expires: 289},
	}
	want := `IPVS connection entries
pro expire state       source             virtual            destination        pe name          pe_data
UDP 01:10  NONE        127.0.0.1:0        127.100.100.100:50000 127.100.100.101:50000 sip                12345678@127.0.0.1
UDP 00:53  NONE        [::1]:0            [::1]:5060         [::1]:5061       sip                a
UDP 04:49  UDP         127.0.0.1:39480    127.0.0.2:5060     127.0.0.1:5060
`
	if diff := cmp.Diff(want, PrintConnections(Request{Numeric: true, PersistentConn: true}, conns, testNames{})); diff != "" {
		t.Error(diff)
	}
}

func TestConnectionsTimeoutsDaemons(t *testing.T) {
	at := netip.MustParseAddrPort
	conns := []kernel.Connection{
		{Protocol: "TCP", Client: at("10.244.1.2:56544"), Virtual: at("10.96.0.80:80"), Destination: at("10.244.3.2:8080"), State: "ESTABLISHED", Expires: 897},
		{Protocol: "TCP", Client: at("10.244.1.2:0"), Virtual: at("10.96.0.81:80"), Destination: at("10.244.3.2:8080"), State: "ASSURED", Expires: 10797},
		{Protocol: "IP", Client: at("192.168.100.100:0"), Virtual: at("0.0.0.8:0"), Destination: at("127.0.0.1:80"), State: "NONE", Expires: 99},
		{Protocol: "TCP", Client: at("[fd00:10:244:1::2]:54738"), Virtual: at("[fd00:10:96::1]:80"), Destination: at("[fd00:10:244:2::2]:8080"), State: "ESTABLISHED", Expires: 898},
	}
	want := `IPVS connection entries
pro expire state       source             virtual            destination
TCP 14:57  ESTABLISHED 10.244.1.2:56544   10.96.0.80:80      10.244.3.2:8080
TCP 179:57 ASSURED     10.244.1.2:0       10.96.0.81:80      10.244.3.2:8080
IP  01:39  NONE        192.168.100.100:0  0.0.0.8:0          127.0.0.1:80
TCP 14:58  ESTABLISHED [fd00:10:244:1::2]:54738 [fd00:10:96::1]:80 [fd00:10:244:2::2]:8080
`
	if diff := cmp.Diff(want, PrintConnections(Request{Numeric: true}, conns, testNames{})); diff != "" {
		t.Error(diff)
	}
	daemon := kernel.Daemon{State: kernel.DaemonMaster, Interface: "lo", SyncID: 7, MaxLen: 1472, Group: netip.MustParseAddr("224.0.0.81"), Port: 8848, TTL: 1}
	const wantDaemon = "master sync daemon (mcast=lo, syncid=7, maxlen=1472, group=224.0.0.81, port=8848, ttl=1)\n"
	if got := PrintDaemons([]kernel.Daemon{daemon}); got != wantDaemon {
		t.Errorf("%q, want %q", got, wantDaemon)
	}
	const wantTimeouts = "Timeout (tcp tcpfin udp): 900 120 300\n"
	if got := PrintTimeouts(kernel.Timeouts{TCP: 900e9, TCPFin: 120e9, UDP: 300e9}); got != wantTimeouts {
		t.Errorf("%q, want %q", got, wantTimeouts)
	}
}
