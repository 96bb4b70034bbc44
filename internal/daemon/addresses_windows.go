package daemon

import (
	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/iphelper"
	"github.com/kube-ipvs/kube-ipvs/internal/userspace"
)

// serviceAddresses returns the machine if the agent's process listens at the addresses of Services, and otherwise nil. The caller must
// call the function.
func serviceAddresses(settings *config.Settings) (userspace.Host, func(), error) {
	if !settings.InProcess() {
		return nil, func() {}, nil
	}
	holder, err := iphelper.Open()
	if err != nil {
		return nil, nil, err
	}
	return holder, func() { _ = holder.Close() }, nil
}
