package ui

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"
)

// echo returns the question as its answer. The question "fail" returns an error, and "wait" waits until ctx ends.
type echo struct{}

func (echo) Answer(ctx context.Context, q Question) (json.RawMessage, error) {
	switch q.Ask {
	case "fail":
		return nil, errors.New("no such <Service>")
	case "wait":
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return json.Marshal(q)
}

var at = &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 4000}

func get(s *Server, host, path string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, "http://x"+path, nil)
	r.Host = host
	w := httptest.NewRecorder()
	s.ServeHTTP(w, r)
	return w
}

func link(s *Server) string {
	_, path, _ := strings.Cut(s.Link(at), at.String())
	return path
}

// TestOnlyTheLinkOpensThePage: a request without the link's token, with a wrong or used token, or for another host name gets a 403 that contains
// no secret.
func TestOnlyTheLinkOpensThePage(t *testing.T) {
	s := NewServer([]string{"node-1"}, map[string]Node{"node-1": echo{}})
	token := link(s)
	refused := func(host, path string) {
		t.Helper()
		w := get(s, host, path)
		if text := w.Body.String() + fmt.Sprint(w.Header()); w.Code != http.StatusForbidden || strings.Contains(text, s.session) || strings.Contains(text, s.token) {
			t.Errorf("%s of %s: %d %s", path, host, w.Code, text)
		}
	}
	paths := []string{"/", "/?token=", "/?token=" + s.session, "/" + s.token + "/", "/ui.js", "/api/nodes", "//", "/x/../api/nodes", "/" + s.session}
	for _, path := range paths {
		refused("127.0.0.1:4000", path)
	}
	for _, host := range []string{"evil.example", "evil.example:4000", "127.0.0.1.evil.example:4000", "192.0.2.1:4000", "", "localhost.:4000", "[::]:4000"} {
		refused(host, token)
		refused(host, "/"+s.session+"/")
	}
	w := get(s, "localhost:8090", token)
	if w.Code != http.StatusSeeOther || w.Header().Get("Location") != "/"+s.session+"/" {
		t.Fatalf("the link returns status %d and header %v", w.Code, w.Header())
	}
	refused("localhost:8090", token)
	for _, path := range paths {
		refused("127.0.0.1:4000", path)
	}
	for _, host := range []string{"127.0.0.1:4000", "localhost:4000", "[::1]:4000", "localhost"} {
		if w := get(s, host, "/"+s.session+"/"); w.Code != http.StatusOK || !strings.Contains(w.Body.String(), "<title>kube-ipvs</title>") {
			t.Errorf("the page at %s returns status %d", host, w.Code)
		}
	}
	if NewServer(nil, nil).session == s.session {
		t.Error("two servers have the same secret")
	}
}

// TestAnswers: a question reaches the chosen node, and errors are JSON. Only GET is allowed.
func TestAnswers(t *testing.T) {
	s := NewServer([]string{"node-1", "b/c"}, map[string]Node{"node-1": echo{}, "b/c": echo{}})
	for path, want := range map[string]string{
		"api/nodes": `200 application/json {"nodes":["node-1","b/c"]}`,
		"api/explain?node=b%2Fc&to=10.96.0.1:80&from=10.0.0.1":          `200 application/json {"ask":"explain","to":"10.96.0.1:80","from":"10.0.0.1"}`,
		"api/overview?node=node-1&filter=%3Ca%3E&sort=name&limit=5&x=y": `200 application/json {"ask":"overview","filter":"\u003ca\u003e","sort":"name","limit":"5"}`,
		"api/service?node=node-1&service=shop%2Fweb":                    `200 application/json {"ask":"service","service":"shop/web"}`,
		"api/fail?node=node-1":                                          `502 application/json {"error":"no such \u003cService\u003e"}`,
		"api/overview?node=none":                                        `404 application/json {"error":"no node \"none\""}`,
		"../../etc/passwd":                                              "404 text/plain; charset=utf-8 no such file",
		"ui.css/":                                                       "404 text/plain; charset=utf-8 no such file",
	} {
		w := get(s, "localhost", "/"+s.session+"/"+path)
		if got := fmt.Sprint(w.Code, " ", w.Header().Get("Content-Type"), " ", strings.TrimSpace(w.Body.String())); got != want {
			t.Errorf("%s\n got %s\nwant %s", path, got, want)
		}
	}
	r := httptest.NewRequest(http.MethodPost, "/"+s.session+"/api/nodes", nil)
	r.Host = "localhost"
	w := httptest.NewRecorder()
	if s.ServeHTTP(w, r); w.Code != http.StatusMethodNotAllowed {
		t.Errorf("POST returns status %d, want 405", w.Code)
	}
}

// TestFilesAreComplete: each file is served with its content type and the security policy, refers to no other site, and never inserts text as HTML.
func TestFilesAreComplete(t *testing.T) {
	s := NewServer(nil, nil)
	types := map[string]string{"html": "text/html; charset=utf-8", "css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
	elsewhere := regexp.MustCompile(`https?://|innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|style="|onclick=`)
	seen := 0
	err := fs.WalkDir(files, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		seen++
		w := get(s, "localhost", "/"+s.session+"/"+name)
		_, extension, _ := strings.Cut(name, ".")
		h := w.Header()
		if h.Get("Content-Type") != types[extension] || h.Get("Content-Security-Policy") != policy || h.Get("Referrer-Policy") != "no-referrer" || h.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %v", name, h)
		}
		text := strings.ReplaceAll(w.Body.String(), "http://www.w3.org/2000/svg", "")
		if found := elsewhere.FindString(text); found != "" {
			t.Errorf("%s contains %s", name, found)
		}
		return nil
	})
	if err != nil || seen < 6 {
		t.Errorf("%d files, %v", seen, err)
	}
}

// TestStream: answers are matched to their questions, in whatever order they arrive. Once the stream has ended, each question fails
// with the reason.
func TestStream(t *testing.T) {
	in, questions := io.Pipe()
	answers, out := io.Pipe()
	served := make(chan error, 1)
	go func() {
		served <- Serve(t.Context(), in, out, echo{})
		out.CloseWithError(errors.New("the pod was deleted"))
	}()
	c := NewClient(answers, questions, 1<<20, func() {})
	slow, cancel := context.WithCancel(t.Context())
	var asking sync.WaitGroup
	for range maxAtOnce - 1 {
		asking.Go(func() {
			if _, err := c.Answer(slow, Question{Ask: "wait"}); !errors.Is(err, context.Canceled) {
				t.Errorf("a canceled question got error %v, want context.Canceled", err)
			}
		})
	}
	for i := range 50 {
		asking.Go(func() {
			want := fmt.Sprintf(`{"ask":"service","service":"shop/%d"}`, i)
			if got, err := c.Answer(t.Context(), Question{Ask: "service", Service: fmt.Sprintf("shop/%d", i)}); err != nil || string(got) != want {
				t.Errorf("got %s, %v; want %s", got, err, want)
			}
		})
		asking.Go(func() {
			if _, err := c.Answer(t.Context(), Question{Ask: "fail"}); err == nil || err.Error() != "no such <Service>" {
				t.Error(err)
			}
		})
	}
	asking.Go(cancel)
	asking.Wait()
	waits := make(chan error)
	go func() {
		_, err := c.Answer(t.Context(), Question{Ask: "wait"})
		waits <- err
	}()
	questions.Close()
	if err := <-served; err != nil {
		t.Error(err)
	}
	if err := <-waits; err == nil {
		t.Error("a pending question got no error when the stream ended")
	}
	for c.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	if _, err := c.Answer(t.Context(), Question{Ask: "overview"}); err == nil || !strings.Contains(err.Error(), "the pod was deleted") {
		t.Error(err)
	}
}

// TestServeEndsWithItsContext: a signal ends the command even if its input stays open.
func TestServeEndsWithItsContext(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	in, questions := io.Pipe()
	defer questions.Close()
	stop()
	if err := Serve(ctx, in, io.Discard, echo{}); err != nil {
		t.Error(err)
	}
}

// TestStreamThatSpeaksNonsense: unexpected text on the stream is an error at both ends.
func TestStreamThatSpeaksNonsense(t *testing.T) {
	if err := Serve(t.Context(), strings.NewReader("help\n"), io.Discard, echo{}); err == nil {
		t.Error("Serve accepts a line that is not a question")
	}
	c := NewClient(strings.NewReader(`unknown command "ui"`), io.Discard, 1<<20, func() {})
	if _, err := c.Answer(t.Context(), Question{Ask: "overview"}); err == nil {
		t.Error("the Client accepts a line that is not an answer")
	}
}

// TestStreamThatSaysTooMuch: an answer beyond the limit ends the stream with an error. Together, answers may be larger.
func TestStreamThatSaysTooMuch(t *testing.T) {
	const limit = 1 << 20
	in, questions := io.Pipe()
	answers, out := io.Pipe()
	ended, written := make(chan struct{}), make(chan error, 1)
	c := NewClient(answers, questions, limit, func() { close(ended) })
	sizes := []int{limit / 2, limit / 2, limit / 2, limit / 2, 3 * limit}
	go func() {
		read := json.NewDecoder(in)
		var err error
		for _, size := range sizes {
			var q question
			if err = read.Decode(&q); err == nil {
				_, err = fmt.Fprintf(out, `{"id":%d,"document":%q}`, q.ID, strings.Repeat("x", size))
			}
		}
		written <- err
	}()
	for _, size := range sizes {
		document, err := c.Answer(t.Context(), Question{Ask: "overview"})
		if size < limit && (err != nil || len(document) < size) {
			t.Fatalf("an answer of %d bytes: got %d bytes, %v", size, len(document), err)
		}
		if size > limit && (err == nil || !strings.Contains(err.Error(), "larger than 1 MiB")) {
			t.Fatalf("an answer of %d bytes: got %d bytes, %v", size, len(document), err)
		}
	}
	<-ended
	_ = answers.Close() // as at the end of a command
	if err := <-written; err == nil {
		t.Error("the whole answer was read")
	}
}
