package ipvs

import (
	"strings"
	"testing"
)

func TestOccupancyCountsEveryVirtualServer(t *testing.T) {
	const title = "IP Virtual Server version 1.2.1 (size=4096)\nProt LocalAddress:Port Scheduler Flags\n  -> RemoteAddress:Port Forward Weight ActiveConn InActConn\n"
	got, err := parseOccupancy(strings.NewReader(title + `TCP  0A600050:0050 lc persistent 360 FFFFFFFF
  -> 0AF40105:1F90      Masq    1      3          20
  -> 0AF40106:1F90      Masq    0      1          0
UDP  [fd00:0010:0096:0000:0000:0000:0000:000a]:0035 rr
  -> [fd00:0010:0244:0000:0000:0000:0000:000a]:0035      Masq    100      0          300
FWM  00000001 rr
  -> 0AF40107:1F90      Route   1      4000       0
`))
	if want := (Occupancy{Connections: 4324, Buckets: 4096}); err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	if got, err := parseOccupancy(strings.NewReader(title)); err != nil || got != (Occupancy{Buckets: 4096}) {
		t.Errorf("without virtual servers: %+v, %v", got, err)
	}
	if _, err := parseOccupancy(strings.NewReader("something else\n")); err == nil {
		t.Error("a file without the size of the table was accepted")
	}
}
