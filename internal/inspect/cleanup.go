package inspect

import (
	"fmt"
	"io"
	"net/netip"

	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// Cleanup is the JSON document of the command cleanup.
type Cleanup struct {
	view.Header
	DryRun bool `json:"dryRun"`
	// Refused is the reason why cleanup would refuse without --dry-run.
	Refused string `json:"refused,omitempty"`
	// A dry run sets ToRemove. A real run sets Removed and Failed.
	ToRemove []string         `json:"toRemove"`
	Removed  []string         `json:"removed"`
	Failed   []cleanupFailure `json:"failed"`
	// ForeignAddresses are other programs' addresses on kube-ipvs0. Cleanup keeps the device if there are any.
	ForeignAddresses []string `json:"foreignAddresses"`
	// ForeignServers are other programs' virtual servers on the device. Kept lists other objects that are kept, with
	// the reasons. Only the removal of kube-proxy's leftovers sets these fields.
	ForeignServers []string `json:"foreignServers,omitempty"`
	Kept           []string `json:"kept,omitempty"`

	mode       kernel.Mode // says how operations are shown
	out, notes io.Writer
}

type cleanupFailure struct {
	Operation string `json:"operation"`
	Error     string `json:"error"`
}

// NewCleanup returns an empty document. The document also writes its content as text: results to out, everything
// else to notes.
func NewCleanup(dryRun bool, mode kernel.Mode, out, notes io.Writer) *Cleanup {
	return &Cleanup{
		Header: view.HeaderOf("Cleanup"), DryRun: dryRun,
		ToRemove: []string{}, Removed: []string{}, Failed: []cleanupFailure{}, ForeignAddresses: []string{},
		mode: mode, out: out, notes: notes,
	}
}

// Refuse records the reason why cleanup would refuse without --dry-run.
func (c *Cleanup) Refuse(why error) {
	c.Refused = why.Error()
	fmt.Fprintln(c.notes, "without --dry-run, cleanup would refuse:", why)
}

// Found records the objects to remove, and other programs' addresses on kube-ipvs0.
func (c *Cleanup) Found(plan diff.Plan, foreign []netip.Addr) {
	for _, addr := range foreign {
		c.ForeignAddresses = append(c.ForeignAddresses, addr.String())
		fmt.Fprintf(c.notes, "address %s on %s belongs to another program; keeping the address and the device\n", addr, kernel.Device)
	}
	c.found(plan, "no objects of kube-ipvs on this node")
}

// FoundLeftovers records kube-proxy's leftovers and the objects that are kept: foreign objects on kube-ipvs0, and
// objects that other programs use.
func (c *Cleanup) FoundLeftovers(plan diff.Plan, addresses []netip.Addr, servers []kernel.ServerKey, kept []string) {
	const unknown = "was not created by kube-ipvs; it may belong to kube-proxy or another program, so it is kept. If nothing needs it: "
	for _, key := range servers {
		c.ForeignServers = append(c.ForeignServers, key.String())
		fmt.Fprintf(c.notes, "virtual server %s %sipvsadm -D %[1]s\n", key, unknown)
	}
	for _, addr := range addresses {
		c.ForeignAddresses = append(c.ForeignAddresses, addr.String())
		fmt.Fprintf(c.notes, "address %s on %s %sip addr del %[1]s/%[4]d dev %[2]s\n", addr, kernel.Device, unknown, addr.BitLen())
	}
	for _, why := range kept {
		c.Kept = append(c.Kept, why)
		fmt.Fprintln(c.notes, why)
	}
	c.found(plan, "no rules, sets or tables of kube-proxy on this node")
}

func (c *Cleanup) found(plan diff.Plan, nothing string) {
	switch {
	case plan.Len() == 0:
		fmt.Fprintln(c.out, nothing)
	case c.DryRun:
		Plan(c.out, plan, c.mode)
		for op := range plan.All {
			c.ToRemove = append(c.ToRemove, op.In(c.mode))
		}
	}
}

// Did records the result of an operation.
func (c *Cleanup) Did(op kernel.Op, err error) {
	text := op.In(c.mode)
	if err != nil {
		c.Failed = append(c.Failed, cleanupFailure{text, err.Error()})
		fmt.Fprintf(c.notes, "failed: %s: %v\n", text, err)
		return
	}
	c.Removed = append(c.Removed, text)
	fmt.Fprintln(c.out, text)
}
