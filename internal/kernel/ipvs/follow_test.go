package ipvs

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

type procTable map[int][]string

func (t procTable) text() string {
	var text strings.Builder
	text.WriteString(procHead)
	for i := range 20 {
		if dests, exists := t[i]; exists {
			fmt.Fprintf(&text, "TCP  %08X:0050 %s  \n", 10<<24+i, []string{"rr", "lc"}[len(dests)%2])
			for _, d := range dests {
				text.WriteString(d)
			}
		}
	}
	return text.String()
}

func procLine(addr, weight, active int) string {
	return fmt.Sprintf("  -> %08X:1F90      Masq    %-6d %-10d %-10d\n", 11<<24+addr, weight, active, 0)
}

// pieces notes the largest piece that is asked for.
type pieces struct {
	io.Reader
	largest int
}

func (p *pieces) Read(b []byte) (int, error) {
	p.largest = max(p.largest, len(b))
	return p.Reader.Read(b)
}

// TestReadsInSmallPieces: a change waits while the kernel writes a piece.
func TestReadsInSmallPieces(t *testing.T) {
	file, memory := &pieces{Reader: bytes.NewReader(manyLines(1000))}, newProcMemory()
	if _, err := memory.read(file); err != nil || file.largest > 8<<10 {
		t.Errorf("a system call reads %d bytes, want at most 8 KB; %v", file.largest, err)
	}
}

// Whatever changes between two reads, a Follower returns the same result as a new read.
func TestFollowProc(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		memory, table := newProcMemory(), procTable{}
		before := fmt.Sprint(destinations{})
		for range rapid.IntRange(1, 6).Draw(t, "readings") {
			for range rapid.IntRange(0, 4).Draw(t, "changes") {
				i := rapid.IntRange(0, 19).Draw(t, "server")
				table[i] = nil
				for j := range rapid.IntRange(0, 4).Draw(t, "destinations") {
					line := procLine(j*7%5, rapid.IntRange(0, 2).Draw(t, "weight"), rapid.IntRange(0, 3).Draw(t, "active"))
					table[i] = append(table[i], line)
				}
				if rapid.IntRange(0, 3).Draw(t, "gone") == 0 {
					delete(table, i)
				}
			}
			want, err := parseProc([]byte(table.text()))
			if err != nil {
				t.Fatal(err)
			}
			changed, err := memory.read(strings.NewReader(table.text()))
			if err != nil {
				t.Fatal(err)
			}
			have := memory.all()
			if diff := cmp.Diff(followed(want), followed(have), compareAddrs); diff != "" {
				t.Error(diff)
			}
			if !changed && before != fmt.Sprint(followed(want)) {
				t.Error("a change was missed")
			}
			before = fmt.Sprint(followed(want))
		}
	})
}

func followed(all destinations) destinations {
	left := destinations{}
	for key, dests := range all {
		sortDestinations(dests)
		left[key] = nil
		for _, d := range dests {
			if d.Weight > 0 {
				d.Stats = kernel.DestinationStats{}
			}
			left[key] = append(left[key], d)
		}
	}
	return left
}

func manyLines(servers int) []byte {
	var text bytes.Buffer
	text.WriteString(procHead)
	for i := range servers {
		fmt.Fprintf(&text, "TCP  %08X:0050 rr  \n", 10<<24+i)
		for j := range 10 {
			text.WriteString(procLine(10*i+j, 1, i))
		}
	}
	return text.Bytes()
}

func TestFollowingAllocatesNothing(t *testing.T) {
	memory := newProcMemory()
	if _, err := memory.read(bytes.NewReader(manyLines(1000))); err != nil {
		t.Fatal(err)
	}
	busier := bytes.ReplaceAll(manyLines(1000), []byte(" 1      "), []byte(" 1      9"))
	var changed bool
	var err error
	allocs := testing.AllocsPerRun(5, func() { changed, err = memory.read(bytes.NewReader(busier)) })
	if changed || err != nil || allocs > 10 {
		t.Errorf("read reported changes: %t, error: %v, %v allocations; want no changes and at most 10 allocations", changed, err, allocs)
	}
}

func BenchmarkFollowProc(b *testing.B) {
	for _, servers := range []int{1000, 10_000} {
		b.Run(fmt.Sprint(servers), func(b *testing.B) {
			memory, text := newProcMemory(), manyLines(servers)
			if _, err := memory.read(bytes.NewReader(text)); err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			for b.Loop() {
				if changed, err := memory.read(bytes.NewReader(text)); changed || err != nil {
					b.Fatal(changed, err)
				}
			}
		})
	}
}
