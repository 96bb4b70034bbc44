package machine

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestHostGet: Get reads only the beginning of a long response, and fails on a closed port.
func TestHostGet(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		fmt.Fprint(w, strings.Repeat("x", 1<<16))
	}))
	h := thisHost{t.Context()}
	status, body, err := h.Get(server.URL)
	if err != nil || status != http.StatusServiceUnavailable || len(body) != 1024 {
		t.Errorf("status %d, %d bytes, %v", status, len(body), err)
	}
	server.Close()
	if _, _, err := h.Get(server.URL); err == nil {
		t.Error("no error for a closed port")
	}
}
