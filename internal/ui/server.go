package ui

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"net"
	"net/http"
	"path"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Question is a request from the page to a node.
type Question struct {
	// Ask is overview, service, explain, changes or doctor.
	Ask string `json:"ask"`
	// Service is NAMESPACE/NAME. To is the target of explain, and From is the client.
	Service string `json:"service,omitempty"`
	To      string `json:"to,omitempty"`
	From    string `json:"from,omitempty"`
	// Filter, Sort and Limit select Services.
	Filter string `json:"filter,omitempty"`
	Sort   string `json:"sort,omitempty"`
	Limit  string `json:"limit,omitempty"`
}

// Node answers questions about one node with JSON documents.
type Node interface {
	Answer(context.Context, Question) (json.RawMessage, error)
}

//go:embed page
var embedded embed.FS

// files contains the page's files. They load nothing from other sites.
var files, _ = fs.Sub(embedded, "page") // the directory exists

const (
	// answerTimeout limits the time for an answer. Running doctor, or reading a node with many Services, can take
	// several seconds.
	answerTimeout = 90 * time.Second
	headerTimeout = 10 * time.Second
	maxHeader     = 8 << 10
)

// policy allows the page to load only its own files.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// Server serves the page.
type Server struct {
	names   []string
	nodes   map[string]Node
	token   string
	session string

	mu   sync.Mutex
	used bool // the token
}

// NewServer returns a Server for these nodes. The page shows them in the order of names.
func NewServer(names []string, nodes map[string]Node) *Server {
	return &Server{names: names, nodes: nodes, token: rand.Text(), session: rand.Text()}
}

// Show serves a page for these nodes on a loopback address until ctx ends, and prints a link that opens it. Port 0 means any free
// port.
func Show(ctx context.Context, out io.Writer, port uint16, names []string, nodes map[string]Node) error {
	listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
	if err != nil {
		return fmt.Errorf("--port %d: %w", port, err)
	}
	server := NewServer(names, nodes)
	fmt.Fprintln(out, server.Link(listener.Addr()))
	return server.Serve(ctx, listener)
}

// Link returns a message for the user. Its last line is the link to the page.
func (s *Server) Link(at net.Addr) string {
	return fmt.Sprintf("Open this link. It works once. To close the page, interrupt the command.\nhttp://%s/?token=%s", at, s.token)
}

// Serve serves the page until ctx ends.
func (s *Server) Serve(ctx context.Context, listener net.Listener) error {
	server := &http.Server{
		Handler: s, MaxHeaderBytes: maxHeader, ReadHeaderTimeout: headerTimeout, ReadTimeout: headerTimeout,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the page: %w", err)
	}
	return nil
}

// ServeHTTP answers a request whose path begins with the session's secret. A path, unlike a cookie, is not sent to other servers on this
// machine.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("Referrer-Policy", "no-referrer") // the path is a secret
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	if !local(r.Host) {
		http.Error(w, "use the link that the command printed: the host must be this machine's loopback address", http.StatusForbidden)
		return
	}
	if r.Method != http.MethodGet {
		http.Error(w, "only GET is allowed", http.StatusMethodNotAllowed)
		return
	}
	if r.URL.Path == "/" && s.redeem(r.URL.Query().Get("token")) {
		http.Redirect(w, r, "/"+s.session+"/", http.StatusSeeOther)
		return
	}
	session, rest, found := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if !found || !same(session, s.session) {
		http.Error(w, "use the link that the command printed; it can be used once. For a new link, start the command again", http.StatusForbidden)
		return
	}
	if ask, isQuestion := strings.CutPrefix(rest, "api/"); isQuestion {
		s.answer(w, r, ask)
		return
	}
	serveFile(w, rest)
}

// local reports whether a request was sent to a loopback address. Another site's script can make a browser send requests here under that
// site's name.
func local(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = strings.Trim(host, "[]")
	}
	ip := net.ParseIP(name)
	return name == "localhost" || ip != nil && ip.IsLoopback()
}

// redeem accepts the token once.
func (s *Server) redeem(token string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used || !same(token, s.token) {
		return false
	}
	s.used = true
	return true
}

func same(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

func serveFile(w http.ResponseWriter, name string) {
	if name == "" {
		name = "index.html"
	}
	text, err := fs.ReadFile(files, name)
	if err != nil {
		http.Error(w, "no such file", http.StatusNotFound)
		return
	}
	w.Header().Set("Content-Type", mime.TypeByExtension(path.Ext(name)))
	_, _ = w.Write(text) // the browser may have disconnected
}

// answer passes a question to its node.
func (s *Server) answer(w http.ResponseWriter, r *http.Request, ask string) {
	w.Header().Set("Content-Type", "application/json")
	if ask == "nodes" {
		_ = json.NewEncoder(w).Encode(map[string][]string{"nodes": s.names})
		return
	}
	q := r.URL.Query()
	node, exists := s.nodes[q.Get("node")]
	if !exists {
		fail(w, http.StatusNotFound, fmt.Errorf("no node %q", q.Get("node")))
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), answerTimeout)
	defer cancel()
	answer, err := node.Answer(ctx, Question{
		Ask: ask, Service: q.Get("service"), To: q.Get("to"), From: q.Get("from"), Filter: q.Get("filter"), Sort: q.Get("sort"), Limit: q.Get("limit"),
	})
	if err != nil {
		fail(w, http.StatusBadGateway, err)
		return
	}
	_, _ = w.Write(answer)
}

func fail(w http.ResponseWriter, status int, err error) {
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": err.Error()})
}
