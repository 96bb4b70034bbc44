package live

import (
	"context"
	"errors"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// auditor reads the kernel outside the agent's loop, in the network namespace in which it was opened.
type auditor struct {
	reader
	thread    thread
	comparer  kernel.Comparer
	unchanged *unchanged
}

func newAuditor(cfg Config, beside *reader, seen *seen) (*auditor, error) {
	a := &auditor{}
	var errs [2]error
	a.reader, errs[0] = newReader(cfg, beside.rules, beside.netdev.NewReader)
	a.thread, errs[1] = newBackgroundThread()
	if err := errors.Join(errs[:]...); err != nil {
		return a, err
	}
	a.members, a.servers, a.mayMiss = a.membersAgain, a.serversAgain, cfg.Mode.RulesInNFTables()
	var err error
	a.unchanged, err = keepUnchanged(a, cfg, seen)
	return a, err
}

func (a *auditor) close() error {
	if a.thread != nil {
		close(a.thread)
	}
	return errors.Join(a.reader.close(), a.unchanged.close())
}

func (a *auditor) stats() nlbatch.Stats {
	if a.unchanged == nil {
		return a.reader.stats()
	}
	return add(a.reader.stats(), a.unchanged.conn.Stats())
}

// Audit reads the kernel as Read does, except for what is in nftables and has not changed. It returns the differences from the previous audit and
// the parts that the request names. After an error, the next audit returns everything. Unlike most other methods, it may be called while another
// method runs.
func (k *Kernel) Audit(ctx context.Context, asked kernel.Audit) (d *kernel.Differences, err error) {
	withSecondProcessor(func() { k.auditor.thread.do(func() { d, err = k.auditor.audit(ctx, asked) }) })
	return d, err
}

func (a *auditor) audit(ctx context.Context, asked kernel.Audit) (*kernel.Differences, error) {
	a.unchanged.begin(ctx)
	fresh, err := a.Read(ctx)
	var found map[kernel.ServerKey]kernel.ObservedServer
	if err == nil && len(asked.Limited) > 0 {
		found, err = a.Lookup(ctx, asked.Limited)
	}
	if err != nil {
		a.comparer = kernel.Comparer{}
		return nil, err
	}
	d := a.comparer.Compare(fresh, asked, found)
	d.Node, _ = a.netdev.Node(ctx) // the agent's loop reads it again, and reports the error
	return d, nil
}
