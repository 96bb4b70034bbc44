package kerneltest

import (
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

func timeouts(b *bench) {
	holds(b, "timeouts at first", freshTimeouts, b.read().Timeouts)
	all := kernel.Timeouts{TCP: time.Second, TCPFin: 2 * time.Second, UDP: 24 * time.Hour}
	b.must(op(kernel.Ensure, all), op(kernel.Ensure, all))
	holds(b, "timeouts", all, b.read().Timeouts)

	b.must(op(kernel.Ensure, kernel.Timeouts{}), op(kernel.Ensure, kernel.Timeouts{TCPFin: 7 * time.Second}))
	all.TCPFin = 7 * time.Second
	holds(b, "one timeout set, the others unchanged", all, b.read().Timeouts)

	b.byAdmin(b.Admin.SetTimeouts(freshTimeouts))
	holds(b, "timeouts set by the admin", freshTimeouts, b.read().Timeouts)
	b.refused(nil, ops(kernel.Ensure,
		kernel.Timeouts{TCP: -time.Second},
		kernel.Timeouts{TCPFin: 1500 * time.Millisecond},
		kernel.Timeouts{TCP: time.Second, UDP: 1 << 31 * time.Second})...)
	b.refused(nil, op(kernel.Create, all), op(kernel.Delete, all))
}
