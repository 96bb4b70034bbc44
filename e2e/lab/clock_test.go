package main

import (
	"runtime"
	"testing"
	"time"
)

func TestTSCFrequencyIsStable(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("amd64 only")
	}
	first, second := tscKHz(), tscKHz()
	if first < 100_000 || first > 10_000_000 {
		t.Errorf("%d kHz cannot be a CPU's frequency", first)
	}
	if diff := int64(first) - int64(second); diff*diff*10_000 > int64(first)*int64(first) { // one percent
		t.Errorf("measured %d kHz, then %d kHz", first, second)
	}
}

func TestClockTrouble(t *testing.T) {
	for _, test := range []struct {
		guest, host time.Duration
		trouble     bool
	}{
		{time.Second, 4 * time.Second, false}, // too short to be checked
		{60 * time.Second, 60 * time.Second, false},
		{65 * time.Second, 60 * time.Second, false},
		{67 * time.Second, 60 * time.Second, true},
		{480 * time.Second, 60 * time.Second, true},
		{53 * time.Second, 60 * time.Second, true},
	} {
		if got := clockTrouble(test.guest, test.host); (got != "") != test.trouble {
			t.Errorf("guest %s, host %s: %q", test.guest, test.host, got)
		}
	}
}
