package ipvs

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

const procHead = `IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port Forward Weight ActiveConn InActConn
`

const procSample = procHead +
	`TCP  0A600050:0050 lc persistent 360 FFFFFFFF
  -> 0AF40202:1F90      Masq    2147483647 7          1         
  -> 0AF40105:1F90      Route   0      0          0         
UDP  [fd00:0010:0096:0000:0000:0000:0000:000a]:0035 rr 
  -> [fd00:0010:0244:0000:0000:0000:0000:0003]:0035      Masq    1      0          0         
FWM  00000001 rr 
  -> 0AF40303:0000      Tunnel  1      0          0         
IP_47  0A600708:0050 rr 
  -> 0AF40303:0050      Masq    1      0          0         
SCTP  0A600707:8E3C wlc ops 
`

func procKey(addr string, p inet.Protocol) kernel.ServerKey {
	return kernel.ServerKey{Addr: netip.MustParseAddrPort(addr), Protocol: p}
}

func procDest(addr string, weight uint32) kernel.ObservedDestination {
	return kernel.ObservedDestination{Destination: kernel.Destination{Addr: netip.MustParseAddrPort(addr), Weight: weight}}
}

func TestParseProc(t *testing.T) {
	busy := procDest("10.244.2.2:8080", 2147483647)
	busy.Stats = kernel.DestinationStats{Active: 7, Inactive: 1}
	routed := procDest("10.244.1.5:8080", 0)
	routed.Forwarding = kernel.ForwardRoute
	want := destinations{
		procKey("10.96.0.80:80", inet.TCP):      {busy, routed},
		procKey("[fd00:10:96::a]:53", inet.UDP): {procDest("[fd00:10:244::3]:53", 1)},
		procKey("10.96.7.7:36412", inet.SCTP):   nil,
	}
	got, err := parseProc([]byte(procSample))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, compareAddrs); diff != "" {
		t.Error(diff)
	}
}

func TestParseProcEmpty(t *testing.T) {
	if got, err := parseProc([]byte(procHead)); err != nil || len(got) != 0 {
		t.Error(got, err)
	}
}

func TestParseProcRefuses(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"empty", "", "version"},
		{"other file", "Inter-|   Receive\n", "version"},
		{"unknown line", procHead + "garbage\n", "line 4"},
		{"no port", procHead + "TCP  0A600050 rr\n", "without a port"},
		{"long address", procHead + "TCP  0A60005000:0050 rr\n", "out of range"},
		{"IPv4 in brackets", procHead + "TCP  [10.0.0.1]:0050 rr\n", "IPv6"},
		{"weight", procHead + "TCP  0A600050:0050 rr\n  -> 0A600050:0050 Masq x 0 0\n", "line 5"},
		{"cut short", procHead + "TCP  0A600050:0050 rr\n  -> 0A600050:0050 Masq 1 0\n", "line 5"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := parseProc([]byte(tt.text)); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

func procAddress(a netip.AddrPort) string {
	if a.Addr().Is4() {
		b := a.Addr().As4()
		return fmt.Sprintf("%02X%02X%02X%02X:%04X", b[0], b[1], b[2], b[3], a.Port())
	}
	return fmt.Sprintf("[%s]:%04X", a.Addr().StringExpanded(), a.Port())
}

func TestProcRoundTrip(t *testing.T) {
	names := map[inet.Protocol]string{inet.TCP: "TCP", inet.UDP: "UDP", inet.SCTP: "SCTP"}
	rapid.Check(t, func(t *rapid.T) {
		text, want := strings.Builder{}, destinations{}
		text.WriteString(procHead)
		for range rapid.IntRange(0, 5).Draw(t, "servers") {
			s := drawServer(t)
			fmt.Fprintf(&text, "%s  %s %s \n", names[s.Key.Protocol], procAddress(s.Key.Addr), s.Scheduler)
			var dests []kernel.ObservedDestination
			for range rapid.IntRange(0, 5).Draw(t, "destinations") {
				d := kernel.ObservedDestination{Destination: kernel.Destination{
					Addr:   drawAddr(t, s.Key.Family(), "destination"),
					Weight: rapid.Uint32Max(1<<31-1).Draw(t, "weight"),
				}}
				fmt.Fprintf(&text, "  -> %s      %-7s %-6d %-10d %-10d\n", procAddress(d.Addr), "Masq", d.Weight, 0, 0)
				dests = append(dests, d)
			}
			want[s.Key] = dests
		}
		got, err := parseProc([]byte(text.String()))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, compareAddrs); diff != "" {
			t.Error(diff)
		}
	})
}

func FuzzParseProc(f *testing.F) {
	f.Add([]byte(procSample))
	f.Add([]byte(procHead))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := parseProc(b)
		if err != nil {
			return
		}
		for key, dests := range got {
			if !key.Addr.IsValid() {
				t.Errorf("server without address: %v", key)
			}
			for _, d := range dests {
				if !d.Addr.IsValid() {
					t.Errorf("destination without address: %v", d)
				}
			}
		}
	})
}

func TestJoin(t *testing.T) {
	both, dumped, listed := procKey("10.0.0.1:1", inet.TCP), procKey("10.0.0.2:2", inet.TCP), procKey("10.0.0.3:3", inet.TCP)
	servers := map[kernel.ServerKey]kernel.Server{both: {Key: both, Scheduler: "rr"}, dumped: {Key: dumped}}
	dests := destinations{both: {procDest("10.1.0.1:1", 1), procDest("10.1.0.2:1", 1)}, listed: nil}
	observed, uncertain := join(servers, dests)
	want := map[kernel.ServerKey]kernel.ObservedServer{both: {
		Server:       servers[both],
		Destinations: []kernel.ObservedDestination{procDest("10.1.0.1:1", 1), procDest("10.1.0.2:1", 1)},
	}}
	if diff := cmp.Diff(want, observed, compareAddrs); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]kernel.ServerKey{dumped, listed}, uncertain, compareAddrs); diff != "" {
		t.Error(diff)
	}
}

func BenchmarkParseProc(b *testing.B) {
	var text strings.Builder
	text.WriteString(procHead)
	for i := range 10_000 {
		fmt.Fprintf(&text, "TCP  %08X:0050 rr  \n", 10<<24+i)
		for j := range 10 {
			fmt.Fprintf(&text, "  -> %08X:1F90      Masq    1      0          0         \n", 11<<24+10*i+j)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := parseProc([]byte(text.String())); err != nil {
			b.Fatal(err)
		}
	}
}
