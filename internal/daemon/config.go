package daemon

import (
	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// Config is the initial configuration of a daemon.
type Config struct {
	Version, Commit string
	Machine         Machine
	// Flags are the command-line flags, which every reload applies again. Loaded is the initial configuration.
	Flags  *config.Flags
	Loaded *config.Loaded
	// Level is the level of Log. A reload can change it.
	Level zap.AtomicLevel
	Log   *zap.Logger
	// Ports is called with the changed ports of the data plane in user space: at first with all of them.
	Ports func([]view.ForwardedPort) error
}
