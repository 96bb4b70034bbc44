package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"aead.dev/minisign"
	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/secure-systems-lab/go-securesystemslib/encrypted"
)

const (
	checkout    = "../.."
	testCommit  = "b34a321b0a5a6d407e845f76daea39145b374220" // an empty commit at testEpoch
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
	if err := b.writeImages(mutate.AppendManifests(empty.Index, mutate.IndexAddendum{Add: empty.Image})); err != nil {
		t.Fatal(err)
	}
	for _, p := range platforms {
		if err := os.MkdirAll(filepath.Dir(b.program(p)), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, b.program(p), "#!/bin/sh\n# stands in for "+p.system()+"\n")
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

// throwAway sets temporary keys in the environment, and returns a copy of the checkout with the public keys.
func throwAway(t *testing.T) string {
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
	t.Setenv("RELEASE_PGP_KEY", armored(t, openpgp.PrivateKeyType, func(w io.Writer) error { return entity.SerializePrivate(w, nil) }))
	dir := copied(t, checkout)
	writeKey(t, dir, publicPGP, armored(t, openpgp.PublicKeyType, func(w io.Writer) error { return entity.Serialize(w) }))
	readable, err := public.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	writeKey(t, dir, publicMinisign, string(readable))
	writeKey(t, dir, publicCosign, cosignKeys(t))
	return dir
}

func writeKey(t *testing.T, dir, name, text string) {
	t.Helper()
	file := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, file, text)
}

func armored(t *testing.T, kind string, serialize func(io.Writer) error) string {
	t.Helper()
	var text bytes.Buffer
	w, err := armor.Encode(&text, kind, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(serialize(w), w.Close()); err != nil {
		t.Fatal(err)
	}
	return text.String()
}

// cosignKeys sets an encrypted cosign key in the environment, and returns the public key.
func cosignKeys(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := encrypted.Encrypt(private, []byte("right"))
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("RELEASE_COSIGN_KEY", string(pem.EncodeToMemory(&pem.Block{Type: "ENCRYPTED SIGSTORE PRIVATE KEY", Bytes: secret})))
	t.Setenv("RELEASE_COSIGN_PASSWORD", "right")
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}))
}

// copied copies the checkout's sources with different modification times.
func copied(t *testing.T, checkout string) string {
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
