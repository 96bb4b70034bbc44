package preflight

import (
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/userspace"
)

// inUserspace returns the result for the data plane in user space, which needs nothing of the kernel.
func inUserspace() Result {
	fit := userspace.Check(false)
	return Result{
		Choice:   Choice{Mode: kernel.Userspace, WhyDataPlane: "--data-plane is userspace", Families: fit.Families, Without: fit.Without},
		Findings: fit.Findings,
	}
}
