// Package bundle writes the archive for a bug report. It limits the time and size of each part and redacts secrets. A
// part that fails or takes too long never stops the others.
//
// May import: view.
package bundle

import (
	"archive/tar"
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/view"
)

// Part is a file in the archive.
type Part struct {
	// File is the name of the file. Command shows how to get the same content in a shell.
	File, Command string
	// Write writes the content. The error may be an ExitError.
	Write func(context.Context, io.Writer) error
	// Patience is the time limit, and Limit is the maximum size; 0 means the default.
	Patience time.Duration
	Limit    int
}

// ExitError is the exit status of a command and its stderr. The content of the part may still be complete.
type ExitError struct {
	Status int
	Text   string
}

func (e ExitError) Error() string { return fmt.Sprintf("exit status %d: %s", e.Status, e.Text) }

const (
	patience = 20 * time.Second
	limit    = 8 << 20
)

// Manifest is the index of the archive.
type Manifest struct {
	view.Header
	Time    time.Time `json:"time"`
	Node    string    `json:"node,omitempty"`
	Version string    `json:"version"`
	Files   []File    `json:"files"`
}

// File describes a file in the archive.
type File struct {
	File    string  `json:"file"`
	Command string  `json:"command"`
	Seconds float64 `json:"seconds"`
	Bytes   int     `json:"bytes"`
	// Truncated is true if the content exceeded the limit. Redacted counts the replaced secrets.
	Truncated bool `json:"truncated,omitempty"`
	Redacted  int  `json:"redacted,omitempty"`
	// Error explains why the file may be incomplete, or contains the command's stderr.
	ExitStatus int    `json:"exitStatus,omitempty"`
	Error      string `json:"error,omitempty"`
}

// FileName is the default name of the archive.
func (m *Manifest) FileName() string {
	return fmt.Sprintf("kube-ipvs-bundle-%s-%s.tar.gz", strings.ReplaceAll(cmp.Or(m.Node, "node"), "/", "-"), m.Time.Format("20060102-150405"))
}

// Failed counts the files with an error.
func (m *Manifest) Failed() (n int) {
	for _, f := range m.Files {
		if f.Error != "" {
			n++
		}
	}
	return n
}

const folder = "kube-ipvs-bundle/"

// Write writes the archive and adds its files to the manifest. The manifest is the last file in the archive.
func Write(ctx context.Context, to io.Writer, manifest *Manifest, parts []Part, secrets *Secrets) error {
	compressed := gzip.NewWriter(to)
	archive := tar.NewWriter(compressed)
	manifest.Header, manifest.Files = view.HeaderOf("Bundle"), []File{}
	for _, p := range parts {
		file, content := p.run(ctx, secrets)
		if ctx.Err() != nil {
			return fmt.Errorf("write the bundle: %w", context.Cause(ctx))
		}
		manifest.Files = append(manifest.Files, file)
		if err := add(archive, p.File, content, manifest.Time); err != nil {
			return err
		}
	}
	index, err := json.MarshalIndent(manifest, "", "  ")
	if err != nil {
		return err
	}
	if err := add(archive, "manifest.json", index, manifest.Time); err != nil {
		return err
	}
	if err := errors.Join(archive.Close(), compressed.Close()); err != nil {
		return fmt.Errorf("write the bundle: %w", err)
	}
	return nil
}

func add(archive *tar.Writer, name string, content []byte, at time.Time) error {
	err := archive.WriteHeader(&tar.Header{Name: folder + name, Mode: 0o600, Size: int64(len(content)), ModTime: at})
	if err == nil {
		_, err = archive.Write(content)
	}
	if err != nil {
		return fmt.Errorf("write the bundle: %w", err)
	}
	return nil
}

// run returns incomplete output if the part takes too long.
func (p Part) run(ctx context.Context, secrets *Secrets) (File, []byte) {
	if p.Patience == 0 {
		p.Patience = patience
	}
	if p.Limit == 0 {
		p.Limit = limit
	}
	limited, cancel := context.WithTimeout(ctx, p.Patience)
	defer cancel()
	out, ended, began := &buffer{room: p.Limit + overlap}, make(chan error, 1), time.Now()
	go func() {
		defer func() {
			if why := recover(); why != nil {
				ended <- fmt.Errorf("panic: %v", why)
			}
		}()
		ended <- p.Write(limited, out)
	}()
	var err error
	select {
	case err = <-ended:
	case <-limited.Done():
		err = fmt.Errorf("no result within %s", p.Patience)
	}
	text, full := out.take()
	file := File{File: p.File, Command: p.Command, Seconds: time.Since(began).Seconds()}
	var exit ExitError
	switch {
	case errors.As(err, &exit):
		file.ExitStatus, file.Error = exit.Status, exit.Text
	case err != nil && !errors.Is(err, errFull):
		file.Error = err.Error()
	}
	if full { // the command failed only because its output was cut off
		file.ExitStatus, file.Error = 0, ""
	}
	file.Error, _ = secrets.Redact(file.Error)
	content, redacted := secrets.Redact(text)
	if file.Truncated, file.Redacted = full || len(content) > p.Limit, redacted; file.Truncated {
		content = content[:min(len(content), p.Limit)]
	}
	file.Bytes = len(content)
	return file, []byte(content)
}

// run reads this many bytes beyond the limit of a part, to recognize a secret that crosses the limit.
const overlap = 64 << 10

var errFull = errors.New("the file is full")

type buffer struct {
	mu   sync.Mutex
	text bytes.Buffer
	room int
	full bool
	over bool
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := min(len(p), b.room-b.text.Len())
	if b.over || n < len(p) {
		b.full = b.full || !b.over
		b.text.Write(p[:max(n, 0)])
		return max(n, 0), errFull
	}
	return b.text.Write(p)
}

func (b *buffer) take() (text string, full bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.over = true
	return b.text.String(), b.full
}
