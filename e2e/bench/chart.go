package bench

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// chart plots a value against the number of Services. Both axes are logarithmic.
type chart struct {
	title string
	value func(Result) float64 // 0 if missing
}

// summaryChart is also in the README.
const summaryChart = "bench-changes.svg"

var charts = map[string]chart{
	summaryChart:       {"Time from an endpoint change to the first connection, median, ms", func(r Result) float64 { return float64(orZero(r.Changes).Median) }},
	"bench-start.svg":  {"Time from the start until all Services are usable, s", func(r Result) float64 { return float64(orZero(r.Start).All) }},
	"bench-memory.svg": {"Anonymous memory once idle, MB", func(r Result) float64 { return float64(orZero(r.Memory).Idle) }},
}

func orZero[T any](p *T) (value T) {
	if p != nil {
		value = *p
	}
	return value
}

// colors contains the programs that charts show.
var colors = map[string]string{
	"kube-ipvs": "#1b6ac9", "kube-proxy iptables": "#d14b1f", "kube-proxy ipvs": "#8a4fb8", "kube-proxy nftables": "#2f854c", "kube-router": "#a07a00",
}

type point struct{ services, value float64 }

func (c chart) points(all []measured, program string) (points []point) {
	for _, r := range all {
		if v := c.value(r.Result); r.Program == program && v > 0 {
			points = append(points, point{float64(r.Services), v})
		}
	}
	return points
}

// shows reports whether there is a line to draw. Results for a single number of Services appear only in the table.
func (c chart) shows(all []measured) bool {
	return slices.ContainsFunc(programs, func(program string) bool { return len(c.points(all, program)) > 1 })
}

// Coordinates in a chart.
const (
	left, right, top, bottom = 60, 580, 70, 320
	width, height            = 600, 370
)

// draw uses a white background, which is readable on light and dark pages.
func (c chart) draw(all []measured) string {
	var every []point
	for _, program := range programs {
		every = append(every, c.points(all, program)...)
	}
	x := scale(every, func(p point) float64 { return p.services }, left, right)
	y := scale(every, func(p point) float64 { return p.value }, bottom, top)
	var b strings.Builder
	fmt.Fprintf(&b, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="13" text-anchor="middle">
<rect width="100%%" height="100%%" fill="#fff"/>
<text x="%d" y="22" font-size="16">%s</text>
<text x="%d" y="%d">Services, ten endpoints each</text>
`, width, height, width/2, c.title, width/2, height-10)
	for v := x.low; v <= x.high; v *= 10 {
		at := int(x.at(v))
		fmt.Fprintf(&b, `<path d="M%d %dV%d" stroke="#ddd"/><text x="%d" y="%d">%s</text>`+"\n", at, top, bottom, at, bottom+20, thousands(int(v)))
	}
	for v := y.low; v <= y.high; v *= 10 {
		at := int(y.at(v))
		fmt.Fprintf(&b, `<path d="M%d %dH%d" stroke="#ddd"/><text x="%d" y="%d" text-anchor="end">%g</text>`+"\n", left, at, right, left-8, at+4, v)
	}
	legend := left
	for _, program := range programs {
		points := c.points(all, program)
		if len(points) == 0 || colors[program] == "" {
			continue
		}
		var line []string
		for _, p := range points {
			line = append(line, fmt.Sprintf("%.1f %.1f", x.at(p.services), y.at(p.value)))
		}
		dots := strings.Join(line, "h0M") + "h0"
		fmt.Fprintf(&b, `<g fill="none" stroke="%s" stroke-linecap="round"><path d="M%s" stroke-width="2"/><path d="M%s" stroke-width="8"/>`,
			colors[program], strings.Join(line, "L"), dots)
		fmt.Fprintf(&b, `<path d="M%d 46h14" stroke-width="4"/></g><text x="%d" y="50" text-anchor="start">%s</text>`+"\n", legend, legend+20, program)
		legend += 30 + 8*len(program)
	}
	return b.String() + "</svg>\n"
}

// axis maps decades to a range of coordinates.
type axis struct{ low, high, from, to float64 }

func scale(points []point, of func(point) float64, from, to float64) axis {
	a := axis{math.Inf(1), 0, from, to}
	for _, p := range points {
		a.low, a.high = min(a.low, of(p)), max(a.high, of(p))
	}
	a.low, a.high = math.Pow(10, math.Floor(math.Log10(a.low))), math.Pow(10, math.Ceil(math.Log10(a.high)))
	a.high = max(a.high, 10*a.low)
	return a
}

func (a axis) at(v float64) float64 {
	return a.from + (a.to-a.from)*math.Log10(v/a.low)/math.Log10(a.high/a.low)
}
