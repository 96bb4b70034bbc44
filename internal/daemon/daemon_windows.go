package daemon

import (
	"context"
	"errors"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// ErrNotHere is the error of everything that needs a Linux kernel.
var ErrNotHere = errors.New("not possible on Windows: IPVS and nftables are parts of the Linux kernel")

// Machine is empty: the agent uses nothing of Windows but sockets, and addresses if the setting names them.
type Machine struct{}

// Run serves Services in user space until the context ends. The setting must name this data plane, as on Linux.
func Run(ctx context.Context, cfg Config) error {
	if chosen := cfg.Loaded.Settings.DataPlane; chosen != kernel.DataPlaneUserspace {
		return errors.New("--data-plane=" + chosen + ": " + ErrNotHere.Error() + "; use --data-plane=userspace")
	}
	return serveUserspace(ctx, cfg)
}
