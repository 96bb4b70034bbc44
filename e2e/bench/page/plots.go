package main

import (
	"bytes"
	"image/color"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/kube-ipvs/kube-ipvs/e2e/bench"
)

// picture is a plot over the number of Services, with a line for each program. Both axes are logarithmic.
type picture struct {
	title string
	value func(bench.Result) float64 // 0 if missing
}

var plots = map[string]picture{
	"bench-changes.svg": {"From an endpoint's change to traffic, median, ms", func(r bench.Result) float64 {
		if r.Changes == nil {
			return 0
		}
		return float64(r.Changes.Median)
	}},
	"bench-start.svg": {"From the start until all Services are usable, s", func(r bench.Result) float64 {
		if r.Start == nil {
			return 0
		}
		return float64(r.Start.All)
	}},
	"bench-memory.svg": {"Anonymous memory once idle, MB", func(r bench.Result) float64 {
		if r.Memory == nil {
			return 0
		}
		return float64(r.Memory.Idle)
	}},
}

var colors = map[string]color.RGBA{
	"kube-ipvs":           {R: 0x1b, G: 0x6a, B: 0xc9, A: 0xff},
	"kube-proxy iptables": {R: 0xd1, G: 0x4b, B: 0x1f, A: 0xff},
	"kube-proxy ipvs":     {R: 0x8a, G: 0x4f, B: 0xb8, A: 0xff},
	"kube-proxy nftables": {R: 0x2f, G: 0x85, B: 0x4c, A: 0xff},
}

// programs are the compared programs, in the order of the legend.
var programs = []string{"kube-ipvs", "kube-proxy iptables", "kube-proxy ipvs", "kube-proxy nftables"}

// shows reports whether there is a line to draw. For a single size, the table is enough.
func (p picture) shows(all []bench.Result) bool {
	return slices.ContainsFunc(programs, func(program string) bool { return len(p.points(all, program)) > 1 })
}

// draw draws on a white background, which is readable on light and dark pages.
func (p picture) draw(all []bench.Result) ([]byte, error) {
	canvas := plot.New()
	canvas.Title.Text, canvas.X.Label.Text = p.title, "Services, ten endpoints each"
	canvas.X.Scale, canvas.Y.Scale = plot.LogScale{}, plot.LogScale{}
	canvas.X.Tick.Marker, canvas.Y.Tick.Marker = ticks, plot.LogTicks{Prec: -1}
	canvas.Legend.Top, canvas.Legend.Left = true, true
	canvas.Add(plotter.NewGrid())
	for _, program := range programs {
		points := p.points(all, program)
		if len(points) == 0 {
			continue
		}
		line, marks, err := plotter.NewLinePoints(points)
		if err != nil {
			return nil, err
		}
		line.Color, marks.Color, line.Width, marks.Shape = colors[program], colors[program], vg.Points(2), draw.CircleGlyph{}
		canvas.Add(line, marks)
		canvas.Legend.Add(program, line, marks)
	}
	// Leave room for the legend, and start at a whole decade.
	canvas.Y.Max *= 30
	canvas.Y.Min = math.Pow(10, math.Floor(math.Log10(canvas.Y.Min)))
	canvas.X.Max *= 1.2 // the label of the largest number is centered below its point
	writer, err := canvas.WriterTo(16*vg.Centimeter, 10*vg.Centimeter, "svg")
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	_, err = writer.WriteTo(&b)
	return b.Bytes(), err
}

func (p picture) points(all []bench.Result, program string) (points plotter.XYs) {
	for _, r := range all {
		if v := p.value(r); r.Program == program && v > 0 {
			points = append(points, plotter.XY{X: float64(r.Services), Y: v})
		}
	}
	return points
}

// ticks are the measured sizes.
var ticks = plot.ConstantTicks(slices.Collect(func(yield func(plot.Tick) bool) {
	for _, n := range []int{100, 1_000, 5_000, 10_000, 50_000} {
		if !yield(plot.Tick{Value: float64(n), Label: thousands(n)}) {
			return
		}
	}
}))
