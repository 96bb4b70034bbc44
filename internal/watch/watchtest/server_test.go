package watchtest_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/watch/watchtest"
)

// TestEnds: a client that watches again while the server ends does not keep it from ending.
func TestEnds(t *testing.T) {
	t.Run("server", func(t *testing.T) {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		server := watchtest.New(t)
		server.StartAt(&closing{listener, func() {
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			again := httptest.NewRequestWithContext(ctx, http.MethodGet, "/api/v1/services?watch=true&resourceVersion=100", nil)
			answer := httptest.NewRecorder()
			server.ServeHTTP(answer, again)
			if answer.Code != http.StatusOK || ctx.Err() != nil {
				t.Errorf("a watch that begins now does not end: %d, %v", answer.Code, ctx.Err())
			}
		}})
	})
}

// closing calls a function before it is closed.
type closing struct {
	net.Listener
	before func()
}

func (c *closing) Close() error {
	c.before()
	return c.Listener.Close()
}
