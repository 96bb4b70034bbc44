package inspect

import (
	"fmt"
	"io"
	"net/netip"

	"github.com/kube-ipvs/kube-ipvs/internal/diff"
	"github.com/kube-ipvs/kube-ipvs/internal/finding"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// Cleanup is the JSON document of the command cleanup.
type Cleanup struct {
	view.Header
	DryRun bool `json:"dryRun"`
	// Refused is the reason why cleanup would refuse without --dry-run.
	Refused string `json:"refused,omitempty"`
	// A dry run sets ToRemove. A real run sets Removed and Failed. Failed also lists what could not be examined, even in a dry run.
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
	nothing    string      // the message if there is nothing to remove; empty if a plan has operations, or if there is no plan
	out, notes io.Writer
}

type cleanupFailure struct {
	Operation string `json:"operation"`
	Error     string `json:"error"`
}

// NewCleanup returns an empty document. The document also writes its content as text: results to out, everything
// else to notes.
func NewCleanup(dryRun bool, out, notes io.Writer) *Cleanup {
	return &Cleanup{
		Header: view.HeaderOf("Cleanup"), DryRun: dryRun,
		ToRemove: []string{}, Removed: []string{}, Failed: []cleanupFailure{}, ForeignAddresses: []string{},
		out: out, notes: notes,
	}
}

// Refuse records the reason why cleanup would refuse without --dry-run.
func (c *Cleanup) Refuse(why error) {
	c.Refused = why.Error()
	fmt.Fprintln(c.notes, "without --dry-run, cleanup would refuse:", why)
}

// Found records the objects to remove, and other programs' addresses on kube-ipvs0.
func (c *Cleanup) Found(plan diff.Plan, mode kernel.Mode, foreign []netip.Addr) {
	for _, addr := range foreign {
		c.ForeignAddresses = append(c.ForeignAddresses, addr.String())
		fmt.Fprintf(c.notes, "address %s on %s belongs to another program; keeping the address and the device\n", addr, kernel.Device)
	}
	c.found(plan, mode, "no objects of kube-ipvs on this node")
}

// FoundLeftovers records kube-proxy's leftovers and the objects that are kept: foreign objects on kube-ipvs0, and
// objects that other programs use.
func (c *Cleanup) FoundLeftovers(plan diff.Plan, mode kernel.Mode, addresses []netip.Addr, servers []kernel.ServerKey, kept []string) {
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
		fmt.Fprintln(c.notes, finding.Printable(why))
	}
	c.found(plan, mode, "no rules, sets or tables of kube-proxy on this node")
}

func (c *Cleanup) found(plan diff.Plan, mode kernel.Mode, nothing string) {
	switch c.mode = mode; {
	case plan.Len() == 0:
		c.nothing = nothing
	case c.DryRun:
		Plan(c.out, plan, mode)
		for op := range plan.All {
			c.ToRemove = append(c.ToRemove, op.In(mode))
		}
	}
}

// Did records the result of an operation.
func (c *Cleanup) Did(op kernel.Op, err error) {
	text := op.In(c.mode)
	if err != nil {
		c.Failed = append(c.Failed, cleanupFailure{text, err.Error()})
		fmt.Fprintf(c.notes, "failed: %s: %s\n", finding.Printable(text), finding.Printable(err.Error()))
		return
	}
	c.Removed = append(c.Removed, text)
	fmt.Fprintln(c.out, finding.Printable(text))
}

// DidLast records the result of a step that no plan contains: that it removed something, would remove it in a dry run, or failed. The
// caller reports the error as text.
func (c *Cleanup) DidLast(what string, err error) {
	switch operation := "remove " + what; {
	case err != nil:
		c.Failed = append(c.Failed, cleanupFailure{operation, err.Error()})
	case c.DryRun:
		c.ToRemove = append(c.ToRemove, operation)
		fmt.Fprintln(c.notes, "kube-ipvs: would remove", what)
	default:
		c.Removed = append(c.Removed, operation)
		fmt.Fprintln(c.notes, "kube-ipvs: removed", what)
	}
}

// Empty reports whether there was nothing to remove.
func (c *Cleanup) Empty() bool { return len(c.ToRemove)+len(c.Removed)+len(c.Failed) == 0 }

// PrintNothing writes that there was nothing to remove, if that is so. The rest of the text has been written.
func (c *Cleanup) PrintNothing(w io.Writer) error {
	if c.nothing == "" || !c.Empty() {
		return nil
	}
	_, err := fmt.Fprintln(w, c.nothing)
	return err
}
