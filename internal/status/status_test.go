package status

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// socketPath returns a short path, because the kernel limits socket paths to 107 bytes.
func socketPath(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "status")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "run", "agent.sock")
}

func start(t *testing.T, path string, ask func(context.Context, agent.Query) (*view.View, error)) (stop func()) {
	t.Helper()
	s := NewServer(Config{Path: path, View: ask, Complete: func(v *view.View, _ agent.Query) { v.Node.Name = "node-1" }, Log: zap.NewNop()})
	s.look = time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { s.Run(ctx) })
	stop = sync.OnceFunc(func() { cancel(); running.Wait() })
	t.Cleanup(stop)
	awaitListener(t, path)
	return stop
}

func awaitListener(t *testing.T, path string) {
	t.Helper()
	for {
		conn, err := net.Dial("unix", path)
		if err == nil {
			_ = conn.Close()
			return
		}
		if t.Context().Err() != nil {
			t.Fatal(err)
		}
	}
}

// TestDeletedDirectory: the server recreates a deleted socket and its directory with the same permissions as at startup.
func TestDeletedDirectory(t *testing.T) {
	path := socketPath(t)
	start(t, path, nothing)
	for i := range 2 {
		if err := os.Rename(filepath.Dir(path), filepath.Dir(path)+strconv.Itoa(i)); err != nil {
			t.Fatal(err)
		}
		awaitListener(t, path)
	}
	info, err := os.Stat(filepath.Dir(path))
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory has mode %v, want 0700 (error %v)", info.Mode(), err)
	}
	if _, err := Get(t.Context(), path, agent.Query{}); err != nil {
		t.Error(err)
	}
}

func nothing(context.Context, agent.Query) (*view.View, error) { return &view.View{}, nil }

// TestQueriesArriveUnchanged: the loop receives the client's query unchanged, and the client receives the complete response.
func TestQueriesArriveUnchanged(t *testing.T) {
	path := socketPath(t)
	var got agent.Query
	start(t, path, func(_ context.Context, ask agent.Query) (*view.View, error) {
		got = ask
		return &view.View{Services: []view.Service{{Namespace: "default", Name: "web"}}}, nil
	})
	for _, ask := range []agent.Query{
		{},
		{All: true},
		{Sample: true},
		{History: true},
		{Service: model.ServiceID{Namespace: "default", Name: "web"}},
		{Address: netip.MustParseAddr("10.96.0.10")},
		{Forwarded: true},
		{Forwarded: true, Connections: true},
	} {
		v, err := Get(t.Context(), path, ask)
		if err != nil {
			t.Fatal(err)
		}
		if got != ask {
			t.Errorf("the client queried %+v, but the loop received %+v", ask, got)
		}
		if v.Node.Name != "node-1" || v.Services[0].ID() != "default/web" {
			t.Errorf("answer %+v", v)
		}
	}
}

// TestOnlyRoot: only the owner ever has access to the socket and its directory.
func TestOnlyRoot(t *testing.T) {
	path := socketPath(t)
	start(t, path, nothing)
	for file, want := range map[string]os.FileMode{path: 0o600, filepath.Dir(path): 0o700} {
		info, err := os.Stat(file)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != want {
			t.Errorf("%s has mode %#o, want %#o", file, info.Mode().Perm(), want)
		}
	}
}

func TestDirectoryWritableByOthers(t *testing.T) {
	path := socketPath(t)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(path), 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := listen(path); err == nil || !strings.Contains(err.Error(), "chmod 700") {
		t.Errorf("got error %v, want one with a remedy", err)
	}
}

// TestStaleSocket: listen replaces a socket that a killed agent left behind, but not a socket in use or another kind of file.
func TestStaleSocket(t *testing.T) {
	path := socketPath(t)
	first, err := listen(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := listen(path); err == nil || !strings.Contains(err.Error(), "another process listens") {
		t.Errorf("a second listener got error %v, want one about the first", err)
	}
	_ = first.Close() // like a killed agent, this leaves the file behind
	second, err := listen(path)
	if err != nil {
		t.Fatalf("could not replace a stale socket: %v", err)
	}
	first.remove()
	if _, err := os.Stat(path); err != nil {
		t.Errorf("the first listener removed the second's socket: %v", err)
	}
	second.remove()
	if _, err := os.Stat(path); err == nil {
		t.Error("the socket still exists")
	}
	if err := os.WriteFile(path, []byte("important"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := listen(path); err == nil || !strings.Contains(err.Error(), "is not a socket") {
		t.Errorf("got error %v for a file that is not a socket", err)
	}
}

func TestServerRemovesItsSocket(t *testing.T) {
	path := socketPath(t)
	start(t, path, nothing)()
	left, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(left) > 0 {
		t.Errorf("the server left files behind: %v (error %v)", left, err)
	}
	if _, err := Get(t.Context(), path, agent.Query{}); !errors.Is(err, ErrNoAgent) {
		t.Errorf("got error %v, want ErrNoAgent", err)
	}
}

func TestBusyLoop(t *testing.T) {
	path := socketPath(t)
	start(t, path, func(context.Context, agent.Query) (*view.View, error) { return nil, errors.New("the loop is busy") })
	if _, err := Get(t.Context(), path, agent.Query{}); err == nil || !strings.Contains(err.Error(), "the loop is busy") {
		t.Errorf("error %v", err)
	}
}

// TestHungLoop: an agent whose loop does not answer counts as an agent that does not respond.
func TestHungLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewServer(Config{View: func(ctx context.Context, _ agent.Query) (*view.View, error) {
			<-ctx.Done()
			return nil, fmt.Errorf("the loop is busy: %w", ctx.Err())
		}})
		answer := httptest.NewRecorder()
		s.handler().ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, viewPath, nil))
		if _, err := read(answer.Result()); !errors.Is(err, ErrNoAgent) || !strings.Contains(err.Error(), "the loop is busy") {
			t.Errorf("error %v", err)
		}
	})
}

// TestBadRequests: invalid requests are rejected and never reach the loop.
func TestBadRequests(t *testing.T) {
	path := socketPath(t)
	asked := false
	start(t, path, func(context.Context, agent.Query) (*view.View, error) { asked = true; return &view.View{}, nil })
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}
	defer transport.CloseIdleConnections()
	client := http.Client{Transport: transport, Timeout: 10 * time.Second}
	for _, c := range []struct {
		method, url string
		status      int
	}{
		{"GET", "/v1/view?address=here", http.StatusBadRequest},
		{"GET", "/v1/view?service=web", http.StatusBadRequest},
		{"GET", "/v1/view?all=maybe", http.StatusBadRequest},
		{"GET", "/v1/view?everything=true", http.StatusBadRequest},
		{"POST", "/v1/view", http.StatusMethodNotAllowed},
		{"GET", "/v2/view", http.StatusNotFound},
		{"GET", "/", http.StatusNotFound},
	} {
		request, err := http.NewRequestWithContext(t.Context(), c.method, "http://agent"+c.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != c.status {
			t.Errorf("%s %s: status %d, want %d", c.method, c.url, response.StatusCode, c.status)
		}
	}
	if asked {
		t.Error("an invalid request reached the loop")
	}
}

// TestConcurrencyLimit: requests above the limit wait.
func TestConcurrencyLimit(t *testing.T) {
	path := socketPath(t)
	var mu sync.Mutex
	now, most := 0, 0
	start(t, path, func(context.Context, agent.Query) (*view.View, error) {
		mu.Lock()
		now++
		most = max(most, now)
		mu.Unlock()
		defer func() { mu.Lock(); now--; mu.Unlock() }()
		return &view.View{}, nil
	})
	var askers sync.WaitGroup
	for range 5 * maxConcurrent {
		askers.Go(func() {
			if _, err := Get(t.Context(), path, agent.Query{All: true}); err != nil {
				t.Error(err)
			}
		})
	}
	askers.Wait()
	if most > maxConcurrent {
		t.Errorf("%d concurrent queries, want at most %d", most, maxConcurrent)
	}
}

// TestLongSync: while the loop is busy, a client receives the last view for the same query, marked as busy. Without
// an earlier view, the client waits.
func TestLongSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var busy time.Duration
		s := NewServer(Config{View: func(ctx context.Context, ask agent.Query) (*view.View, error) {
			at := time.Now()
			select {
			case <-time.After(busy):
				return &view.View{Time: at, Problems: []string{ask.Service.Name}}, nil
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}})
		web := agent.Query{Service: model.ServiceID{Name: "web"}}
		asks := func(ask agent.Query, within time.Duration) (*view.View, time.Duration) {
			t.Helper()
			ctx, cancel := context.WithTimeout(t.Context(), within)
			defer cancel()
			began := time.Now()
			v, err := s.view(ctx, ask)
			if err != nil {
				t.Fatal(err)
			}
			return v, time.Since(began)
		}
		first, _ := asks(web, patience)
		time.Sleep(40 * time.Second)
		busy = 40 * time.Second
		if v, took := asks(web, patience); took != answerTimeout || !v.Agent.Busy || !v.Time.Equal(first.Time) || len(v.Problems) != 1 {
			t.Errorf("got %+v after %s, want the earlier view", v, took)
		}
		if v, took := asks(agent.Query{}, patience); took != busy || v.Agent.Busy {
			t.Errorf("another query got %+v after %s, want a current view", v, took)
		}
		time.Sleep(maxAge)
		if v, took := asks(web, patience); took != busy || v.Agent.Busy {
			t.Errorf("got %+v after %s, want a current view, because the earlier one is old", v, took)
		}
		busy = 0
		if v, _ := asks(web, patience); v.Agent.Busy {
			t.Error("the view is still marked as busy after the sync")
		}
		for i := range 3 * maxKept {
			asks(agent.Query{Service: model.ServiceID{Name: strconv.Itoa(i)}}, patience)
		}
		asks(agent.Query{All: true}, patience)
		if len(s.kept) > maxKept {
			t.Errorf("%d views are kept, want at most %d", len(s.kept), maxKept)
		}
	})
}

// TestAnotherUsersListener: a client does not trust a listener that another user runs. The agent itself would reject that user's
// directory.
func TestAnotherUsersListener(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can become another user")
	}
	path := socketPath(t)
	for _, dir := range []string{filepath.Dir(filepath.Dir(path)), filepath.Dir(path)} {
		_ = os.Mkdir(dir, 0o777) // the first directory exists
		if err := os.Chmod(dir, 0o777); err != nil {
			t.Fatal(err)
		}
	}
	listening := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked, because only this thread becomes the other user
		_, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, 1000, 1000, 1000)
		if errno != 0 {
			listening <- errno
			return
		}
		listener, err := net.Listen("unix", path)
		listening <- err
		if err == nil {
			<-t.Context().Done()
			listening <- listener.Close()
		}
	}()
	if err := <-listening; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := <-listening; err != nil {
			t.Error(err)
		}
	})
	if _, err := Get(t.Context(), path, agent.Query{}); err == nil || !strings.Contains(err.Error(), "of user 1000") {
		t.Errorf("got error %v, want one that rejects the listener", err)
	}
}
