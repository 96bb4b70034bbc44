package ipvsadm

import (
	"strconv"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

func (p *printer) stats(c kernel.Counters) {
	p.numbers(c.Connections, c.InPackets, c.OutPackets, c.InBytes, c.OutBytes)
}

// rates abbreviates only byte rates.
func (p *printer) rates(c kernel.Counters) {
	p.printf(" %8d %8d %8d", c.ConnectionRate, c.InPacketRate, c.OutPacketRate)
	p.numbers(c.InByteRate, c.OutByteRate)
}

func (p *printer) numbers(all ...uint64) {
	for _, n := range all {
		if p.request.Exact {
			digits := strconv.FormatUint(n, 10)
			p.printf("%*s", max(len(digits)+1, 9), digits)
		} else {
			p.WriteString(abbreviated(n))
		}
	}
}

// abbreviated formats a number in nine columns. From 100,000,000 it uses a suffix, and truncates instead of rounding.
func abbreviated(n uint64) string {
	switch {
	case n < 1e8:
		return right(n, 9, "")
	case n < 1e9:
		return right(n/1e3, 8, "K")
	case n < 1e11:
		return right(n/1e6, 8, "M")
	case n < 1e14:
		return right(n/1e9, 8, "G")
	}
	return right(n/1e12, 8, "T")
}

func right(n uint64, width int, suffix string) string {
	s := strconv.FormatUint(n, 10)
	for len(s) < width {
		s = " " + s
	}
	return s + suffix
}
