package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"aead.dev/minisign"
	"github.com/ProtonMail/go-crypto/openpgp"
	"helm.sh/helm/v4/pkg/provenance"
)

// keys sign a release. They are optional, so anyone can build a release.
type keys struct {
	minisign *minisign.PrivateKey  // for the checksums
	cosign   *cosigner             // for the checksums, the images and the provenance
	pgp      *provenance.Signatory // for the chart's provenance, which Helm verifies with OpenPGP only
}

// keysFrom reads keys from environment variables.
func keysFrom(env func(string) string) (keys, error) {
	var k keys
	if text := env("RELEASE_MINISIGN_KEY"); text != "" {
		key, err := minisignKey([]byte(text), env("RELEASE_MINISIGN_PASSWORD"))
		if err != nil {
			return k, fmt.Errorf("RELEASE_MINISIGN_KEY: %w", err)
		}
		k.minisign = &key
	}
	if text := env("RELEASE_COSIGN_KEY"); text != "" {
		var err error
		if k.cosign, err = cosignKey(text, env("RELEASE_COSIGN_PASSWORD")); err != nil {
			return k, fmt.Errorf("RELEASE_COSIGN_KEY: %w", err)
		}
	}
	if text := env("RELEASE_PGP_KEY"); text != "" {
		signatory, err := pgpKey(text, env("RELEASE_PGP_PASSWORD"))
		if err != nil {
			return k, fmt.Errorf("RELEASE_PGP_KEY: %w", err)
		}
		k.pgp = signatory
	}
	return k, nil
}

// missing lists the variables of the keys that are not set.
func (k keys) missing() []string {
	var missing []string
	for _, need := range []struct {
		name string
		set  bool
	}{
		{"RELEASE_MINISIGN_KEY", k.minisign != nil},
		{"RELEASE_COSIGN_KEY", k.cosign != nil},
		{"RELEASE_PGP_KEY", k.pgp != nil},
	} {
		if !need.set {
			missing = append(missing, need.name)
		}
	}
	return missing
}

// requireSigned returns an error if the build must be signed but would lack a signature. The image's signature contains
// the image's name.
func (b *build) requireSigned(required bool) error {
	missing := b.keys.missing()
	if b.image == "" {
		missing = append(missing, "IMAGE")
	}
	if required && len(missing) > 0 {
		return fmt.Errorf("not set: %s", strings.Join(missing, ", "))
	}
	return nil
}

func minisignKey(text []byte, password string) (minisign.PrivateKey, error) {
	if minisign.IsEncrypted(text) {
		return minisign.DecryptKey(password, text)
	}
	var key minisign.PrivateKey
	return key, key.UnmarshalText(text)
}

func pgpKey(text, password string) (*provenance.Signatory, error) {
	ring, err := openpgp.ReadArmoredKeyRing(strings.NewReader(text))
	if err != nil {
		return nil, err
	}
	if len(ring) != 1 {
		return nil, fmt.Errorf("it contains %d keys; it must contain one", len(ring))
	}
	signatory := &provenance.Signatory{Entity: ring[0], KeyRing: ring}
	return signatory, signatory.DecryptKey(func(string) ([]byte, error) {
		if password == "" {
			return nil, errors.New("the key is encrypted; set RELEASE_PGP_PASSWORD")
		}
		return []byte(password), nil
	})
}

// fileSum is the SHA-256 checksum of a file, in hexadecimal.
type fileSum struct{ name, sum string }

func sumOf(file string) (fileSum, error) {
	content, err := os.ReadFile(file)
	return fileSum{filepath.Base(file), fmt.Sprintf("%x", sha256.Sum256(content))}, err
}

// sums returns the checksums of the files that exist so far.
func (b *build) sums() ([]fileSum, error) {
	entries, err := os.ReadDir(b.out)
	if err != nil {
		return nil, err
	}
	var all []fileSum
	for _, e := range entries {
		one, err := sumOf(filepath.Join(b.out, e.Name()))
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

// checksums writes SHA256SUMS in the format of sha256sum, and signs it.
func (b *build) checksums() error {
	files, err := b.sums()
	if err != nil {
		return err
	}
	var list strings.Builder
	for _, f := range files {
		fmt.Fprintf(&list, "%s  %s\n", f.sum, f.name)
	}
	if missing := b.keys.missing(); len(missing) > 0 {
		fmt.Println("not set, so the release is not fully signed:", strings.Join(missing, ", "))
	}
	file := filepath.Join(b.out, "SHA256SUMS")
	if err := os.WriteFile(file, []byte(list.String()), 0o644); err != nil {
		return err
	}
	if b.keys.cosign != nil {
		if err := b.keys.cosign.signFile(file+".sigstore.json", []byte(list.String())); err != nil {
			return err
		}
	}
	if b.keys.minisign == nil {
		return nil
	}
	comment := fmt.Sprintf("kube-ipvs %s\ttimestamp:%d\tfile:SHA256SUMS", b.version, b.when.Unix())
	signature := minisign.SignWithComments(*b.keys.minisign, []byte(list.String()), comment, "signature of kube-ipvs "+b.version)
	return os.WriteFile(file+".minisig", signature, 0o644)
}
