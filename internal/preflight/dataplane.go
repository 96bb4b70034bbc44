package preflight

import (
	"errors"
	"fmt"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// DataPlane says what balances connections on this node.
type DataPlane struct {
	// NFTables balances; otherwise IPVS.
	NFTables bool
	// Why is the reason, for the log.
	Why string
}

// Name is ipvs or nftables.
func (d DataPlane) Name() string {
	if d.NFTables {
		return kernel.DataPlaneNFTables
	}
	return kernel.DataPlaneIPVS
}

func (d DataPlane) String() string { return fmt.Sprintf("%s (%s)", d.Name(), d.Why) }

// ChooseDataPlane decides by the setting, and with kernel.DataPlaneAuto by whether the kernel has IPVS or can load it.
func ChooseDataPlane(setting string) DataPlane {
	if setting != kernel.DataPlaneAuto {
		return chooseDataPlane(setting, nil)
	}
	_, err := ipvsFamily()
	return chooseDataPlane(setting, err)
}

// chooseDataPlane decides by the result of the probe. An error that may be gone at the next start does not replace IPVS.
func chooseDataPlane(setting string, ipvs error) DataPlane {
	switch {
	case setting == kernel.DataPlaneNFTables:
		return DataPlane{true, "--data-plane is nftables"}
	case setting == kernel.DataPlaneAuto && errors.Is(ipvs, errAbsent):
		return DataPlane{true, "the kernel has no IPVS"}
	case setting == kernel.DataPlaneAuto:
		return DataPlane{false, "the kernel has IPVS"}
	}
	return DataPlane{false, "--data-plane is ipvs"}
}

// rulesSetting is where sets and rules are: nftables balances with those of its own table only.
func rulesSetting(setting string, plane DataPlane) string {
	if plane.NFTables {
		return kernel.RulesNFTables
	}
	return setting
}
