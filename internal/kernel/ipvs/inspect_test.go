package ipvs

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

const connText = `Pro FromIP   FPrt ToIP     TPrt DestIP   DPrt State       Expires PEName PEData
TCP 0AF40102 DD0C 0A600050 0050 0AF40202 1F90 TIME_WAIT       117
IP  C0A86464 0000 00000008 0000 C0A86464 0000 NONE             94 sip 12345678@here
TCP fd00:0000:0000:0000:0000:0000:0000:0005 B29C fd00:0000:0000:0000:0000:0000:0000:0005 0050 0000:0000:0000:0000:0000:0000:0000:0001 0051 CLOSE             4
`

func TestParseConns(t *testing.T) {
	at := netip.MustParseAddrPort
	want := []kernel.Connection{
		{Protocol: "TCP", Client: at("10.244.1.2:56588"), Virtual: at("10.96.0.80:80"), Destination: at("10.244.2.2:8080"), State: "TIME_WAIT", Expires: 117},
		{Protocol: "IP", Client: at("192.168.100.100:0"), Virtual: at("0.0.0.8:0"), Destination: at("192.168.100.100:0"), State: "NONE", Expires: 94,
			Engine: "sip", EngineData: "12345678@here"},
		{Protocol: "TCP", Client: at("[fd00::5]:45724"), Virtual: at("[fd00::5]:80"), Destination: at("[::1]:81"), State: "CLOSE", Expires: 4},
	}
	got, err := parseConns([]byte(connText))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
}

func TestParseConnsFailures(t *testing.T) {
	for _, line := range []string{"TCP 0AF40102 DD0C", "TCP 0AF40102 DD0C 0A600050 0050 0AF40202 X TIME_WAIT 117", "\n"} {
		if _, err := parseConns([]byte("title\n" + line)); err == nil {
			t.Errorf("%q is accepted", line)
		}
	}
}

func FuzzParseConns(f *testing.F) {
	f.Add([]byte(connText))
	f.Fuzz(func(_ *testing.T, b []byte) { _, _ = parseConns(b) })
}

func FuzzDecodeTable(f *testing.F) {
	f.Add(append(genlHeader(cmdNewService, 1), encodeTableKey(kernel.TableKey{Family: 4, Mark: 1 << 31})...))
	f.Fuzz(func(_ *testing.T, b []byte) {
		_, _ = decodeTableService(b)
		_, _ = decodeTableDestination(b, 4)
		_ = decodeInfo(new(kernel.TableInfo), b)
		_ = eachNested(b, attrDaemon, daemonDecoder(new(kernel.Daemon)))
	})
}

func FuzzTimeouts(f *testing.F) {
	f.Add(append(genlHeader(cmdSetConfig, 1), 8, 0, 1, 0, 0x84, 3, 0, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		if timeouts, err := decodeTimeouts(b); err == nil && (timeouts.TCP < 0 || timeouts.TCPFin < 0 || timeouts.UDP < 0) {
			t.Errorf("%x has negative timeouts: %+v", b, timeouts)
		}
	})
}
