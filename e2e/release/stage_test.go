package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"aead.dev/minisign"
	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
)

const (
	checkout    = "../.."
	testCommit  = "0123456789abcdef0123456789abcdef01234567"
	testEpoch   = "1767225600"
	testImage   = "registry.example/team/kube-ipvs"
	testVersion = "v0.1.0-test"
)

// stub returns a build with placeholders for the compiled programs.
func stub(t *testing.T, checkout string) *build {
	t.Helper()
	t.Setenv("RELEASE_COMMIT", testCommit)
	t.Setenv("SOURCE_DATE_EPOCH", testEpoch)
	b, err := newBuild(checkout, t.TempDir(), testVersion, testImage)
	if err != nil {
		t.Fatal(err)
	}
	b.work = t.TempDir()
	for _, p := range platforms {
		if err := os.MkdirAll(filepath.Dir(b.program(p)), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, b.program(p), "#!/bin/sh\n# stands in for "+p.String()+"\n")
	}
	for _, c := range clients {
		if err := os.MkdirAll(filepath.Dir(b.clientProgram(c)), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, b.clientProgram(c), "stands in for kubectl-ipvs on "+c.String()+"\n")
	}
	return b
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// throwAway sets temporary keys in the environment and returns the public keys.
func throwAway(t *testing.T) (minisign.PublicKey, openpgp.EntityList) {
	t.Helper()
	public, private, err := minisign.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	plain, err := private.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("RELEASE_MINISIGN_KEY", string(plain))
	entity, err := openpgp.NewEntity("Test", "", "test@example.org", nil)
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	w, err := armor.Encode(&text, openpgp.PrivateKeyType, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := entity.SerializePrivate(w, nil); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	t.Setenv("RELEASE_PGP_KEY", text.String())
	return public, openpgp.EntityList{entity}
}

// copied copies the checkout's sources with different modification times.
func copied(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"CHANGELOG.md", "Dockerfile", "LICENSE", "charts", "cmd", "docs", "go.mod", "go.sum", "internal", "e2e/release"} {
		source := filepath.Join(checkout, name)
		info, err := os.Stat(source)
		if err != nil {
			t.Fatal(err)
		}
		if !info.IsDir() {
			write(t, filepath.Join(dir, name), string(read(t, source)))
		} else if err := os.CopyFS(filepath.Join(dir, name), os.DirFS(source)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}
