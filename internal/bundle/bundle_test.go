package bundle

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"
)

type tester interface {
	Helper()
	Fatal(...any)
	Fatalf(string, ...any)
	Errorf(string, ...any)
}

func unpack(t tester, archive []byte) (map[string]string, Manifest) {
	t.Helper()
	uncompressed, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		t.Fatal(err)
	}
	files, index := map[string]string{}, Manifest{}
	for r := tar.NewReader(uncompressed); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[strings.TrimPrefix(h.Name, folder)] = string(text)
		if h.Mode != 0o600 {
			t.Errorf("%s has mode %o", h.Name, h.Mode)
		}
	}
	if err := json.Unmarshal([]byte(files["manifest.json"]), &index); err != nil {
		t.Fatalf("read the index: %v", err)
	}
	return files, index
}

func TestPartsFailAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		says := func(text string, err error) func(context.Context, io.Writer) error {
			return func(_ context.Context, w io.Writer) error {
				_, _ = io.WriteString(w, text)
				return err
			}
		}
		var out bytes.Buffer
		hang := make(chan struct{})
		defer close(hang)
		manifest := Manifest{Node: "node-1", Time: time.Now()}
		err := Write(t.Context(), &out, &manifest, []Part{
			{File: "fails", Write: says("half", errors.New("no permission"))},
			{File: "verdict", Write: says("bad", ExitError{2, ""})},
			{File: "hangs", Patience: time.Second, Write: func(_ context.Context, w io.Writer) error {
				_, _ = io.WriteString(w, "begun")
				<-hang
				return nil
			}},
			{File: "panics", Write: func(context.Context, io.Writer) error { panic("boom") }},
			{File: "large", Limit: 100, Write: func(_ context.Context, w io.Writer) error {
				for {
					if _, err := io.WriteString(w, strings.Repeat("x", 1000)); err != nil {
						return err
					}
				}
			}},
			{File: "good", Command: "true", Write: says("fine", nil)},
		}, NewSecrets(nil))
		if err != nil {
			t.Fatal(err)
		}
		files, index := unpack(t, out.Bytes())
		for i, want := range []File{
			{File: "fails", Bytes: 4, Error: "no permission"}, {File: "verdict", Bytes: 3, ExitStatus: 2},
			{File: "hangs", Seconds: 1, Bytes: 5, Error: "no result within 1s"}, {File: "panics", Error: "panic: boom"}, {File: "large", Bytes: 100, Truncated: true},
			{File: "good", Command: "true", Bytes: 4},
		} {
			if index.Files[i] != want || len(files[want.File]) != want.Bytes {
				t.Errorf("got index entry %+v, want %+v; content %q", index.Files[i], want, files[want.File])
			}
		}
		if index.Failed() != 3 || len(files) != 7 || index.FileName() != "kube-ipvs-bundle-node-1-20000101-000000.tar.gz" {
			t.Errorf("got %d failed files of %d, archive name %s", index.Failed(), len(files), index.FileName())
		}
	})
}

// TestSizesAreBounded: no file exceeds its limit, and the index contains the sizes.
func TestSizesAreBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var parts []Part
		for i, size := range rapid.SliceOfN(rapid.IntRange(0, 3*overlap), 0, 5).Draw(t, "sizes") {
			parts = append(parts, Part{
				File: fmt.Sprint(i), Limit: rapid.IntRange(1, 2*overlap).Draw(t, "limit"),
				Write: func(_ context.Context, w io.Writer) error {
					_, err := w.Write(bytes.Repeat([]byte("y"), size))
					return err
				},
			})
		}
		var out bytes.Buffer
		if err := Write(context.Background(), &out, &Manifest{}, parts, NewSecrets(nil)); err != nil {
			t.Fatal(err)
		}
		files, index := unpack(t, out.Bytes())
		for i, f := range index.Files {
			if len(files[f.File]) != f.Bytes || f.Bytes > parts[i].Limit || f.Error != "" {
				t.Fatalf("%+v has %d bytes, but the limit is %d", f, len(files[f.File]), parts[i].Limit)
			}
		}
	})
}

// TestInterrupted: an interrupted command leaves no archive.
func TestInterrupted(t *testing.T) {
	path := filepath.Join(t.TempDir(), "b.tar.gz")
	ctx, cancel := context.WithCancel(t.Context())
	err := Save(path, false, func(w io.Writer) error {
		return Write(ctx, w, &Manifest{}, []Part{{File: "a", Write: func(context.Context, io.Writer) error { cancel(); return nil }}}, NewSecrets(nil))
	})
	left, _ := os.ReadDir(filepath.Dir(path))
	if !errors.Is(err, context.Canceled) || len(left) > 0 {
		t.Errorf("got error %v, and files were left behind: %v", err, left)
	}
}

// TestSave: only the owner can read the file, an existing file is replaced only with force, and a failure leaves
// nothing behind.
func TestSave(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "b.tar.gz")
	says := func(text string) func(io.Writer) error {
		return func(w io.Writer) error { _, err := io.WriteString(w, text); return err }
	}
	content := func() string {
		text, _ := os.ReadFile(path)
		return string(text)
	}
	if err := Save(path, false, says("first")); err != nil || content() != "first" {
		t.Fatalf("%v, %q", err, content())
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o600 {
		t.Errorf("got mode %v, error %v", info.Mode(), err)
	}
	called := false
	if err := Save(path, false, func(io.Writer) error { called = true; return nil }); err == nil || called || !strings.Contains(err.Error(), "--force") {
		t.Errorf("with an existing file, got error %v, written: %t", err, called)
	}
	if err := Save(path, true, func(io.Writer) error { return errors.New("no") }); err == nil || content() != "first" {
		t.Errorf("after a failure, got error %v and content %q", err, content())
	}
	if err := Save(path, true, says("second")); err != nil || content() != "second" {
		t.Errorf("with force, got error %v and content %q", err, content())
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("files were left behind: %v", left)
	}
}

func TestSaveReplacesOnlyFiles(t *testing.T) {
	dir := t.TempDir()
	nothing := func(io.Writer) error { return nil }
	appears := filepath.Join(dir, "c")
	if err := Save(appears, false, func(io.Writer) error { return os.WriteFile(appears, []byte("other"), 0o600) }); err == nil {
		t.Error("Save replaced a file that was created while it was writing")
	}
	for _, bad := range []string{dir, filepath.Join(dir, "none", "b")} {
		if err := Save(bad, true, nothing); err == nil {
			t.Errorf("wrote %s", bad)
		}
	}
	if left, _ := os.ReadDir(dir); len(left) != 1 {
		t.Errorf("files were left behind: %v", left)
	}
}

func TestShapes(t *testing.T) {
	for text, want := range map[string]string{
		"Authorization: Bearer abc.def":                                              "Authorization: Bearer REDACTED",
		`"authorization": "Basic dXNlcjpwYXNz"`:                                      `"authorization": "Basic REDACTED"`,
		"x eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJl.c2ln y":                             "x REDACTED y",
		"password: hunter2hunter2\nuser: admin":                                      "password: REDACTED\nuser: admin",
		`{"client-key-data": "LS0tLS1CRUdJTi"}`:                                      `{"client-key-data": "REDACTED"}`,
		`\"token\":\"0123456789abcdef\"`:                                             `\"token\":\"REDACTED\"`,
		"GITHUB_TOKEN=ghp_0123456789":                                                "GITHUB_TOKEN=REDACTED",
		"https://user:pass@example.com/x":                                            "https://user:REDACTED@example.com/x",
		"a\n-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----\nb": "a\nREDACTED\nb",
		"-----BEGIN PRIVATE KEY-----\nMIIE":                                          "REDACTED",
		"token in /etc/kubernetes/kubelet.conf expires":                              "token in /etc/kubernetes/kubelet.conf expires",
		"http://10.96.0.1:443/ and [fd00::1]:80":                                     "http://10.96.0.1:443/ and [fd00::1]:80",
		"TCP  10.96.0.20:80 rr persistent 10800":                                     "TCP  10.96.0.20:80 rr persistent 10800",
	} {
		if got, _ := NewSecrets(nil).Redact(text); got != want {
			t.Errorf("%q became %q, want %q", text, got, want)
		}
	}
}

// TestRedaction: no known secret remains in text or JSON, and redacting a second time changes nothing.
func TestRedaction(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		values := rapid.SliceOfN(rapid.StringMatching(`[A-Za-z0-9<&"\\/+=._-]{6,40}`), 1, 4).Draw(t, "secrets")
		around := rapid.StringMatching(`[a-z :="\n]{0,30}`)
		s, text := NewSecrets(values), ""
		for _, value := range values {
			quoted, _ := json.Marshal(value)
			text += around.Draw(t, "before") + value + around.Draw(t, "between") + string(quoted)
		}
		clean, count := s.Redact(text)
		for _, known := range s.known {
			if strings.Contains(strings.ReplaceAll(clean, redacted, ""), known) && strings.Contains(clean, known) {
				t.Fatalf("secret %q is in %q", known, clean)
			}
		}
		if again, more := s.Redact(clean); count == 0 || again != clean || more != 0 {
			t.Fatalf("replaced %d secrets; a second pass returned %q for %q", count, again, clean)
		}
	})
}

func TestCredentials(t *testing.T) {
	got := fmt.Sprint(Credentials("HOME=/root\nAPI_TOKEN=tok-123\nusers:\n- name: a\n  user:\n    token: \"abcdef\"\n    client-key: /etc/key.pem\n    client-key-data: LS0t\n"))
	if want := "[tok-123 abcdef LS0t]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
