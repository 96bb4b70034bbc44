package live

import (
	"context"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/iptables"
)

// Rules lists the rules of every family, other people's too: what Read leaves out.
func (k *Kernel) Rules(ctx context.Context) (map[inet.Family]iptables.Listing, error) {
	return k.iptables.List(ctx)
}
