package config

import "github.com/kube-ipvs/kube-ipvs/internal/kernel"

// The values of forward.addresses.
const (
	AtLoopback = "loopback"
	AtServices = "services"
)

var forwardAddresses = setting{path: "forward.addresses", flag: "forward-addresses", byDefault: AtLoopback, applies: afterRestart,
	value: func(s *Settings) value { return oneOf(&s.ForwardAddresses, []string{AtLoopback, AtServices}) },
	meaning: "where the data plane userspace listens: at 127.0.0.1 and ::1 (loopback), without privileges, or at the addresses of Services and at " +
		"node ports, as the other data planes do (services), which needs root, or an administrator on Windows"}

// InProcess reports whether the agent's process serves the addresses of Services.
func (s *Settings) InProcess() bool {
	return s.DataPlane == kernel.DataPlaneUserspace && s.ForwardAddresses == AtServices
}

// forwardConflicts concern forward.addresses.
var forwardConflicts = []conflict{
	{[]string{"forward.addresses", "dataPlane"},
		func(s *Settings) bool { return s.ForwardAddresses == AtServices && !s.InProcess() },
		"only the data plane userspace listens; use dataPlane: userspace, or remove forward.addresses"},
	{[]string{"forward.addresses", "addresses"},
		func(s *Settings) bool { return s.InProcess() && s.Addresses == byRoutes },
		"in user space, addresses are always routes; remove addresses"},
	{[]string{"forward.addresses", "egress.masquerade"},
		func(s *Settings) bool { return s.InProcess() && s.Egress.Masquerade },
		"in user space, the agent has no rules that masquerade; let the network plugin masquerade"},
	{[]string{"dataPlane", "removeStartupTaint"},
		func(s *Settings) bool {
			return s.DataPlane == kernel.DataPlaneUserspace && !s.InProcess() && s.RemoveStartupTaint
		},
		"pods on this node cannot reach Services at loopback addresses, so the taint must stay; remove one of them, or use forward.addresses: services"},
}
