package conntrack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel/nlbatch"
)

const (
	walkAttempts = 10
	// batch is the number of entries deleted in one send.
	batch = 256
)

type walk struct {
	backend   *Backend
	family    inet.Family
	protocols []inet.Protocol
	stale     func(kernel.Flow) bool

	// unfiltered is true once the kernel has ignored the filter and sent an entry of another protocol.
	unfiltered bool

	deletions []nlbatch.Request // collected, not sent yet
	ended     int
	failed    error // error of the first entry that could not be deleted
	unread    error // error of the first entry that could not be read
}

func (w *walk) repeat(ctx context.Context) error {
	for attempt := 1; ; attempt++ {
		w.failed, w.unread = nil, nil
		err := w.once(ctx)
		if attempt == walkAttempts || !errors.Is(err, nlbatch.ErrDumpInterrupted) {
			return errors.Join(explain(err), w.failed, w.unread)
		}
	}
}

// once walks the table once per protocol. If the kernel ignores the filter, one walk suffices.
func (w *walk) once(ctx context.Context) error {
	for _, p := range w.protocols {
		if err := w.through(ctx, p); err != nil || w.unfiltered {
			return err
		}
	}
	return nil
}

func (w *walk) through(ctx context.Context, asked inet.Protocol) error {
	err := w.backend.table.Walk(ctx, request(cmdGet, w.family, wanted(asked)), func(payload []byte) error {
		w.visit(ctx, payload, asked)
		return nil
	})
	w.sendDeletions(ctx)
	return err
}

func (w *walk) visit(ctx context.Context, payload []byte, asked inet.Protocol) {
	e, err := w.judge(payload, asked)
	switch {
	case err != nil:
		w.unread = firstOf(w.unread, fmt.Errorf("read a connection: %w", err))
	case e == nil:
	case e.protocol == inet.TCP:
		w.endUnanswered(ctx, e.entry)
	default:
		w.deletions = append(w.deletions, e.deletion(w.family))
		if len(w.deletions) == batch {
			w.sendDeletions(ctx)
		}
	}
}

type staleEntry struct {
	entry
	protocol inet.Protocol
}

func (w *walk) judge(payload []byte, asked inet.Protocol) (*staleEntry, error) {
	e, err := readEntry(payload)
	if err != nil {
		return nil, err
	}
	p, err := protocolOf(e.original)
	w.unfiltered = w.unfiltered || err == nil && p != asked
	if err != nil || e.zoned || !slices.Contains(w.protocols, p) || p == inet.TCP && !e.unanswered() {
		return nil, err
	}
	flow, err := e.flow()
	if err != nil || !w.stale(flow) {
		return nil, err
	}
	return &staleEntry{entry: e, protocol: p}, nil
}

// endUnanswered deletes a TCP entry, unless the connection has been answered since. The kernel cannot compare and delete in one step: doc.go
// describes what happens if the answer arrives between the two requests.
func (w *walk) endUnanswered(ctx context.Context, e entry) {
	still, err := w.stillUnanswered(ctx, e)
	switch {
	case err != nil:
		w.note(err)
	case still:
		w.delete(ctx, []nlbatch.Request{e.deletion(w.family)})
	}
}

func (w *walk) stillUnanswered(ctx context.Context, e entry) (bool, error) {
	answers, errs := w.backend.entries.Get(ctx, []nlbatch.Request{e.reading(w.family)})
	if errs[0] != nil || len(answers[0]) != 1 {
		return false, errs[0]
	}
	now, err := readEntry(answers[0][0].Payload)
	return now.unanswered() && bytes.Equal(now.id, e.id), err
}

func (w *walk) sendDeletions(ctx context.Context) {
	w.delete(ctx, w.deletions)
	w.deletions = w.deletions[:0]
}

func (w *walk) delete(ctx context.Context, deletions []nlbatch.Request) {
	for _, err := range w.backend.entries.Do(ctx, deletions) {
		if err != nil {
			w.note(err)
			continue
		}
		w.ended++
	}
}

// note records the error of an entry that could not be deleted. A missing entry is not an error, because it has expired.
func (w *walk) note(err error) {
	if !errors.Is(err, unix.ENOENT) {
		w.failed = firstOf(w.failed, fmt.Errorf("delete a connection: %w", err))
	}
}
