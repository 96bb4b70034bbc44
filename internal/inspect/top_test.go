package inspect_test

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"pgregory.net/rapid"

	"github.com/kube-ipvs/kube-ipvs/internal/inspect"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

func countsOf(ends ...uint64) inspect.Counts {
	count := kernel.Traffic{Endpoints: map[netip.AddrPort]kernel.TableDestination{}}
	for i, n := range append(ends, make([]uint64, 3-len(ends))...) {
		d := kernel.TableDestination{Stats: kernel.Counters{Connections: n, InBytes: 100 * n}}
		have := shopKernel()[shopAt].Destinations[i]
		d.Weight, d.Active = have.Weight, have.Stats.Active
		count.Endpoints[netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 0, byte(i + 1)}), 0)] = d
		count.Connections += n
		count.OutBytes += 1000 * n
	}
	return inspect.Counts{shopAt: count}
}

// TestTop: a share is a fraction of the new connections or, if there are none, of the open connections.
func TestTop(t *testing.T) {
	loser := shopView() // the traffic to its frontends belongs to the other Service
	loser.Name = "loser"
	for i := range loser.Frontends {
		loser.Frontends[i].State = view.Conflict
	}
	services := inspect.ServiceListOf([]view.Service{loser, shopView()}, shopKernel(), kernel.IPVSWithIPTables)
	for name, c := range map[string]struct {
		before, now inspect.Counts
		connections float64
		shares      string
	}{
		"new connections":     {countsOf(10, 5), countsOf(16, 7), 4, "0.75/1.00 0.25/0.00 0.00/0.00"},
		"open connections":    {countsOf(10, 5), countsOf(10, 5), 0, "0.67/1.00 0.00/0.00 0.33/0.00"},
		"created again":       {countsOf(10, 5), countsOf(4, 0), 2, "1.00/1.00 0.00/0.00 0.00/0.00"},
		"nothing read before": {nil, countsOf(2, 2), 0, "0.67/1.00 0.00/0.00 0.33/0.00"},
	} {
		t.Run(name, func(t *testing.T) {
			list := inspect.TopOf(services, c.before, c.now, 2)
			if len(list.Items) != 2 || list.Items[0].Server != shopAt.String() {
				t.Fatalf("%+v", list.Items)
			}
			shop := list.Items[0]
			var shares []string
			for _, address := range []string{"10.244.0.1", "10.244.0.2", "10.244.0.3"} {
				for _, e := range shop.Endpoints {
					if e.Address.Addr().String() == address {
						shares = append(shares, fmt.Sprintf("%.2f/%.2f", e.Share, e.WeightShare))
					}
				}
			}
			if got := strings.Join(shares, " "); shop.Traffic.Connections != c.connections || got != c.shares || shop.BytesOut != 1000*c.connections {
				t.Errorf("%g connections/s, %g bytes/s, shares %s; want %g, %g, %s",
					shop.Traffic.Connections, shop.BytesOut, got, c.connections, 1000*c.connections, c.shares)
			}
		})
	}
}

// TestTopPicture: for any keys, sizes and names, the output fits the terminal and contains no control characters,
// and all numbers are finite.
func TestTopPicture(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		service := shopView()
		service.Name = rapid.SampledFrom([]string{"shop", "a\x1b[2Jb", strings.Repeat("long", 60), "ü"}).Draw(t, "name")
		services := inspect.ServiceListOf([]view.Service{service, shopView()}, shopKernel(), kernel.IPVSWithIPTables)
		draw := func(label string) inspect.Counts {
			return countsOf(rapid.SliceOfN(rapid.Uint64(), 0, 3).Draw(t, label)...)
		}
		screen := inspect.TopScreen{}
		for range rapid.IntRange(0, 12).Draw(t, "steps") {
			key := rapid.SampledFrom([]rune{'c', 'p', 'b', 'a', 'i', 'd', 'n', 'e', ' ', '/', 's', 'h', 'x', '\r', 27, 127, 'k', 'j',
				inspect.Up, inspect.Down, inspect.PageUp, inspect.PageDown}).Draw(t, "key")
			if screen.Key(key) {
				t.Fatalf("key %q quits", key)
			}
			list := inspect.TopOf(services, draw("before"), draw("now"), rapid.SampledFrom([]float64{0, 0.1, 2, 3600}).Draw(t, "seconds"))
			width, height := rapid.IntRange(0, 200).Draw(t, "width"), rapid.IntRange(0, 40).Draw(t, "height")
			lines := screen.Lines(list, "top", width, height)
			if len(lines) > height {
				t.Fatalf("got %d lines for a height of %d", len(lines), height)
			}
			for _, line := range lines {
				if utf8.RuneCountInString(line) > width || strings.ContainsFunc(line, func(r rune) bool { return !unicode.IsPrint(r) }) {
					t.Fatalf("line %q contains control characters or exceeds the width of %d", line, width)
				}
			}
			for _, e := range list.Items {
				for _, n := range []float64{e.Traffic.Connections, e.Packets, e.BytesIn, e.BytesOut, e.Endpoints[0].Share} {
					if math.IsNaN(n) || math.IsInf(n, 0) || n < 0 {
						t.Fatalf("%+v", e)
					}
				}
			}
		}
	})
}

func TestTopKeys(t *testing.T) {
	services := inspect.ServiceListOf([]view.Service{shopView()}, shopKernel(), kernel.IPVSWithIPTables)
	list := inspect.TopOf(services, countsOf(1), countsOf(3), 2)
	for keys, want := range map[string][2]string{ // text that the screen must contain, and text that it must not contain
		"":          {"sorted by CONN/S", "100% of 100%"},
		"e":         {"100% of 100%", "filter"},
		"n":         {"sorted by NAME", "CONN/S   ("},
		"/http\r":   {"0 of 2 frontends", "10.96.0.1:80/tcp"}, // port names are not searched
		"/:443\r":   {"1 of 2 frontends", "10.96.0.1:80/tcp"},
		"/shop\x7f": {"filter: sho_", "sorted by"},
		"/x\x1b":    {"2 of 2 frontends", "filter"},
		"h":         {"Space           pause", "10.96.0.1"},
		"hh ":       {"paused", "Space           pause"},
	} {
		screen := inspect.TopScreen{}
		for _, key := range keys {
			screen.Key(key)
		}
		picture := strings.Join(screen.Lines(list, "top", 200, 20), "\n")
		if !strings.Contains(picture, want[0]) || strings.Contains(picture, want[1]) {
			t.Errorf("after the keys %q, the screen is\n%s\nwant it to contain %q, but not %q", keys, picture, want[0], want[1])
		}
	}
	screen := inspect.TopScreen{}
	if err := screen.SortBy("active"); err != nil {
		t.Error(err)
	}
	list.Unknown = []string{"the counters are stopped"}
	for _, want := range []string{"sorted by ACTIVE", "unknown: the counters are stopped"} {
		if picture := strings.Join(screen.Lines(list, "top", 200, 20), "\n"); !strings.Contains(picture, want) {
			t.Errorf("the screen lacks %q:\n%s", want, picture)
		}
	}
	if err := screen.SortBy("age"); err == nil {
		t.Error("sorted by a column that does not exist")
	}
	for _, key := range []rune{'q', 3} {
		if screen := (inspect.TopScreen{}); !screen.Key(key) {
			t.Errorf("%q does not quit", key)
		}
	}
}

// TestTopScrolls: scrolling shows every row once, in order, and formats only visible rows.
func TestTopScrolls(t *testing.T) {
	services := inspect.ServiceListOf([]view.Service{shopView()}, shopKernel(), kernel.IPVSWithIPTables)
	one := inspect.TopOf(services, countsOf(1), countsOf(3), 2)
	list := inspect.TopList{}
	for i := range 2000 {
		e := one.Items[0]
		e.Name, e.Endpoints = fmt.Sprintf("s%04d", i), e.Endpoints[:i%3]
		list.Items = append(list.Items, e)
	}
	for _, height := range []int{3, 4, 7} { // two lines of status, the titles, and rows
		screen := inspect.TopScreen{Endpoints: true}
		screen.Key('n')
		rows := screen.Lines(list, "top", 200, height)[3:]
		for range 50 {
			screen.Key(inspect.Down)
			lines := screen.Lines(list, "top", 200, height)[3:]
			if len(lines) != height-3 || len(rows) > 0 && !slices.Equal(lines[:len(lines)-1], rows[1:]) {
				t.Fatalf("height %d: got\n%s\nfollowed by\n%s", height, strings.Join(rows, "\n"), strings.Join(lines, "\n"))
			}
			rows = lines
		}
	}
	screen := inspect.TopScreen{}
	if got := testing.AllocsPerRun(2, func() { screen.Lines(list, "top", 200, 20) }); got > 2000 {
		t.Errorf("Lines allocates %.0f times for 17 rows", got)
	}
}

// TestKeys: each escape sequence is decoded as the right key.
func TestKeys(t *testing.T) {
	for text, want := range map[string][]rune{
		"q": {'q'}, "ab": {'a', 'b'}, "ü": {'ü'}, "\x1b[A": {inspect.Up}, "\x1bOB": {inspect.Down}, "\x1b[6~": {inspect.PageDown},
		"\x1b[15~": nil, "\x1b[A\x1b[Ax": {inspect.Up, inspect.Up, 'x'}, "\x1b": {27},
	} {
		if got := inspect.ParseKeys(text); string(got) != string(want) {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
}
