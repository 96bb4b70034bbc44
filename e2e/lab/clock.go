package main

import (
	"fmt"
	"time"
)

// tscKHz measures the frequency of the host's time stamp counter. An emulated CPU exposes this counter to the guest.
// A guest on a busy host may measure a wrong frequency, which makes its clock wrong by a factor of up to eight.
func tscKHz() uint64 {
	const span = 50 * time.Millisecond
	ticks, began := tscAndTime()
	time.Sleep(span)
	later, ended := tscAndTime()
	return (later - ticks) * uint64(time.Millisecond) / uint64(ended.Sub(began))
}

// tscAndTime reads both clocks at nearly the same moment. It returns the fastest of several attempts.
func tscAndTime() (uint64, time.Time) {
	var ticks, best uint64
	var now time.Time
	for range 20 {
		before := rdtsc()
		t := time.Now()
		if took := rdtsc() - before; now.IsZero() || took < best {
			ticks, best, now = before+took/2, took, t
		}
	}
	return ticks, now
}

// clockMargin is the maximum relative error of a guest's clock. Runs shorter than clockSpan are not checked.
const (
	clockMargin = 0.1
	clockSpan   = 5 * time.Second
)

// clockTrouble compares a run's duration on the guest's clock with its duration on the host's. It returns "" if they
// agree.
func clockTrouble(guest, host time.Duration) string {
	if host < clockSpan {
		return ""
	}
	ratio := guest.Seconds() / host.Seconds()
	if ratio > 1-clockMargin && ratio < 1+clockMargin {
		return ""
	}
	return fmt.Sprintf("THE GUEST'S CLOCK WAS WRONG: it counted %s while the host counted %s (%.2f times as fast). "+
		"Timeouts and intervals in this run are meaningless; run it again", guest.Round(time.Millisecond), host.Round(time.Millisecond), ratio)
}
