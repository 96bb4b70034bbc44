package cluster

import (
	"fmt"
	"strings"
	"time"
)

// GetLarge sends a request of size bytes and fails the test unless the answer contains the same bytes. Over UDP,
// the request is one fragmented datagram.
func (h *Host) GetLarge(t T, proto Protocol, addr string, size int, options ...DialOption) {
	t.Helper()
	if err := h.ProbeLarge(proto, addr, size, options...); err != nil {
		t.Fatalf("%s -> %s %s: a request of %d bytes: %s (%v)", h.Name, addr, proto, size, outcomeOf(err), err)
	}
}

// ProbeLarge is like GetLarge, but returns an error instead of failing a test.
func (h *Host) ProbeLarge(proto Protocol, addr string, size int, options ...DialOption) error {
	request := strings.Repeat("x", size)
	answer, err := h.exchange(proto, addr, request, optionsOf(options, DefaultWithin))
	if err != nil {
		return err
	}
	if back, _, _ := strings.Cut(answer, " "); back != request {
		return fmt.Errorf("the answer has %d of %d bytes, or its content differs", len(back), size)
	}
	return nil
}

func (h *Host) exchange(proto Protocol, addr, line string, o dialOptions) (string, error) {
	c, err := h.dial(proto, addr, o)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if err := c.file.SetDeadline(time.Now().Add(o.within)); err != nil {
		return "", err
	}
	if _, err := c.file.WriteString(line + "\n"); err != nil {
		return "", fmt.Errorf("request: %w", err)
	}
	answer, err := c.line()
	if err != nil {
		return "", fmt.Errorf("answer: %w", err)
	}
	return answer, nil
}
