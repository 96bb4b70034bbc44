package ipvs

import (
	"context"
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

var impossible = kernel.ServerKey{Addr: netip.AddrPortFrom(netip.IPv6Unspecified(), 1), Protocol: inet.TCP}

// Schedulers reports which of these schedulers are in the kernel. Schedulers that could not be checked are absent from the result.
//
// It requests a virtual server with an invalid IPv6 prefix length. The kernel looks up the scheduler first, loads its module if it exists,
// and only then rejects the length. https://elixir.bootlin.com/linux/v6.1/source/net/netfilter/ipvs/ip_vs_ctl.c#L1348
func (b *Backend) Schedulers(ctx context.Context, names []string) map[string]bool {
	reqs := make([]nlbatch.Request, len(names))
	for i, name := range names {
		reqs[i] = b.request(cmdNewService, nlbatch.AppendNest(nil, attrService, func(attrs []byte) []byte {
			attrs = appendKey(attrs, impossible)
			attrs = nlbatch.AppendString(attrs, svcScheduler, name)
			attrs = nlbatch.AppendAttr(attrs, svcFlags, flagsAndMask(0))
			attrs = nlbatch.AppendUint32(attrs, svcTimeout, 0)
			return nlbatch.AppendUint32(attrs, svcNetmask, 0)
		}))
	}
	_, errs := b.get(ctx, reqs...)
	has := map[string]bool{}
	for i, err := range errs {
		if missing := errors.Is(err, unix.ENOENT); missing || errors.Is(err, unix.EINVAL) {
			has[names[i]] = !missing
		}
	}
	return has
}
