package ipvs

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

// Apply executes the operations on virtual servers, destinations and timeouts in order, and returns one result per operation. One system
// call carries many operations. A failed operation does not stop later ones.
func (b *Backend) Apply(ctx context.Context, ops []kernel.Op) []error {
	errs := make([]error, len(ops))
	reqs := make([]nlbatch.Request, 0, len(ops))
	sent := make([]int, 0, len(ops)) // the operation of each request
	for i, op := range ops {
		req, err := b.encode(op)
		if err != nil {
			errs[i] = describe(op, kernel.InvalidError{Reason: err})
			continue
		}
		reqs, sent = append(reqs, req), append(sent, i)
	}
	results := b.conn.Do(ctx, reqs)
	noFamily := b.checkFamily(ctx, results)
	for i, err := range results {
		op := ops[sent[i]]
		if noFamily != nil && errors.Is(err, unix.ENOENT) {
			err = noFamily
		}
		if err = meaning(op, err); err != nil {
			errs[sent[i]] = describe(op, err)
		}
	}
	return errs
}

var verbs = map[kernel.Verb]string{kernel.Create: "create", kernel.Update: "update", kernel.Delete: "delete", kernel.Ensure: "set"}

var nouns = map[kernel.Kind]string{
	kernel.KindServer: "virtual server", kernel.KindDestination: "destination", kernel.KindTimeouts: "IPVS timeouts",
}

func describe(op kernel.Op, err error) error {
	return fmt.Errorf("%s %s %s: %w", verbs[op.Verb], nouns[op.KindOf()], op.Object, err)
}

func (b *Backend) encode(op kernel.Op) (nlbatch.Request, error) {
	switch object := op.Object.(type) {
	case kernel.Server:
		return b.encodeServerOp(op.Verb, object)
	case kernel.ServerDestination:
		return b.encodeDestinationOp(op.Verb, object)
	case kernel.Timeouts:
		return b.encodeTimeoutsOp(op.Verb, object)
	}
	return nlbatch.Request{}, errors.New("not an IPVS object")
}

func (b *Backend) encodeServerOp(verb kernel.Verb, s kernel.Server) (nlbatch.Request, error) {
	if verb == kernel.Delete {
		return b.request(cmdDelService, encodeKey(s.Key)), checkAddress(s.Key.Addr)
	}
	attrs, err := encodeServer(s)
	switch verb {
	case kernel.Create:
		return b.request(cmdNewService, attrs), err
	case kernel.Update:
		return b.request(cmdSetService, attrs), err
	}
	return nlbatch.Request{}, fmt.Errorf("verb %d does not apply to virtual servers", verb)
}

func (b *Backend) encodeDestinationOp(verb kernel.Verb, d kernel.ServerDestination) (nlbatch.Request, error) {
	if verb == kernel.Delete {
		attrs, err := encodeDestinationKey(d)
		return b.request(cmdDelDest, attrs), err
	}
	attrs, err := encodeDestination(d)
	switch verb {
	case kernel.Create:
		return b.request(cmdNewDest, attrs), err
	case kernel.Update:
		return b.request(cmdSetDest, attrs), err
	}
	return nlbatch.Request{}, fmt.Errorf("verb %d does not apply to destinations", verb)
}

func (b *Backend) encodeTimeoutsOp(verb kernel.Verb, t kernel.Timeouts) (nlbatch.Request, error) {
	if verb != kernel.Ensure {
		return nlbatch.Request{}, fmt.Errorf("verb %d does not apply to timeouts", verb)
	}
	attrs, err := encodeTimeouts(t)
	return b.request(cmdSetConfig, attrs), err
}

// meaning translates the kernel's error numbers, whose meaning depends on the request.
func meaning(op kernel.Op, err error) error {
	switch object := op.Object.(type) {
	case kernel.Server:
		return serverError(op.Verb, object, err)
	case kernel.ServerDestination:
		return destinationError(op.Verb, err)
	case kernel.Timeouts:
		return timeoutsError(err)
	}
	return err
}

func serverError(verb kernel.Verb, s kernel.Server, err error) error {
	switch {
	case errors.Is(err, unix.EEXIST):
		return kernel.ErrExists
	case errors.Is(err, unix.ESRCH) && verb == kernel.Delete:
		return nil
	case errors.Is(err, unix.ESRCH):
		return kernel.ErrNotFound
	case errors.Is(err, unix.ENOENT):
		return fmt.Errorf("%w: %w", kernel.NoSchedulerError{Scheduler: s.Scheduler}, err)
	}
	return err
}

func destinationError(verb kernel.Verb, err error) error {
	switch {
	case errors.Is(err, unix.EEXIST):
		return kernel.ErrExists
	case verb == kernel.Delete && (errors.Is(err, unix.ESRCH) || errors.Is(err, unix.ENOENT)):
		return nil
	case errors.Is(err, unix.ESRCH):
		return fmt.Errorf("virtual server %w", kernel.ErrNotFound)
	case errors.Is(err, unix.ENOENT):
		return kernel.ErrNotFound
	case errors.Is(err, unix.EINVAL):
		return fmt.Errorf("the address is not a unicast or local address of the server's family, or the loopback interface is down: %w", err)
	}
	return err
}
