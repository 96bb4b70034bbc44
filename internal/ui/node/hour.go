package node

import (
	"net/netip"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

const (
	// minutes is the number of minutes in a series.
	minutes = 60
	// maxSeries limits memory use to 40 MB. Idle virtual servers and endpoints need no series.
	maxSeries = 50_000
)

// Minute is the traffic in one minute.
type Minute struct {
	Connections float32 `json:"connections"`
	BytesIn     float32 `json:"bytesIn"`
	BytesOut    float32 `json:"bytesOut"`
}

func (m *Minute) add(o Minute) {
	m.Connections += o.Connections
	m.BytesIn += o.BytesIn
	m.BytesOut += o.BytesOut
}

// place is a virtual server, or one of its endpoints.
type place struct {
	server   kernel.ServerKey
	endpoint netip.AddrPort
}

// series is a ring of minutes. Minute n is at index n%minutes. The minutes from last-minutes+1 to last are valid.
type series struct {
	last int64
	ring [minutes]Minute
}

// advance moves the last minute to now.
func (s *series) advance(now int64) {
	for s.last = max(s.last, now-minutes); s.last < now; {
		s.last++
		s.ring[s.last%minutes] = Minute{}
	}
}

// hour records the traffic of the last hour, minute by minute.
type hour struct {
	now    int64 // the current minute
	series map[place]*series
	// left counts the places that had traffic but got no series, because maxSeries was reached.
	left int
}

func newHour() *hour { return &hour{series: map[place]*series{}} }

// add adds the traffic between two readings to the minute of the second reading.
func (h *hour) add(at time.Time, before, now inspect.Counts) {
	if minute := at.Unix() / 60; minute != h.now {
		h.now = minute
		h.prune()
	}
	h.left = 0
	for key, traffic := range now {
		was, known := before[key]
		if !known {
			continue // without an earlier reading, its new traffic is unknown
		}
		h.addTo(place{server: key}, was.Counters, traffic.Counters)
		for addr, d := range traffic.Endpoints {
			h.addTo(place{key, addr}, was.Endpoints[addr].Stats, d.Stats)
		}
	}
}

func (h *hour) addTo(at place, before, now kernel.Counters) {
	t := inspect.TrafficOf(before, now, 1)
	if t == (inspect.Traffic{}) {
		return
	}
	s := h.series[at]
	switch {
	case s == nil && len(h.series) >= maxSeries:
		h.left++
		return
	case s == nil:
		s = &series{last: h.now}
		h.series[at] = s
	}
	s.advance(h.now)
	s.ring[h.now%minutes].add(Minute{float32(t.Connections), float32(t.BytesIn), float32(t.BytesOut)})
}

// prune deletes the series without traffic in the last hour.
func (h *hour) prune() {
	for at, s := range h.series {
		if s.last <= h.now-minutes {
			delete(h.series, at)
		}
	}
}

// of returns the traffic of a place in the last hour, oldest minute first.
func (h *hour) of(at place) [minutes]Minute {
	var out [minutes]Minute
	s := h.series[at]
	if s == nil {
		return out
	}
	for i := range out {
		if minute := h.now - minutes + 1 + int64(i); minute <= s.last && minute > s.last-minutes {
			out[i] = s.ring[minute%minutes]
		}
	}
	return out
}

// sum returns the total of an hour.
func sum(all [minutes]Minute) (total Minute) {
	for _, m := range all {
		total.add(m)
	}
	return total
}
