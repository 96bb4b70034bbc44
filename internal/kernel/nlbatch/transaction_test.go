package nlbatch

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// TestRefusedCommit: if the kernel refuses a commit, it refuses the beginning of the transaction and then acknowledges each request. The next requests
// must not receive these acknowledgments.
func TestRefusedCommit(t *testing.T) {
	refuses, works := &fakeSocket{answer: ackAll(unix.ENOMEM, 0)}, &fakeSocket{answer: ackAll(0)}
	c := fakeConn(refuses, works)
	for i, err := range c.Transaction(t.Context(), Request{Type: unix.NFNL_MSG_BATCH_BEGIN}, requests(3), Request{Type: unix.NFNL_MSG_BATCH_END}) {
		if !errors.Is(err, unix.ENOMEM) {
			t.Errorf("request %d: %v", i, err)
		}
	}
	if err := errors.Join(c.Do(t.Context(), requests(3))...); err != nil {
		t.Errorf("the next requests: %v", err)
	}
}
