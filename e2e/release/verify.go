package main

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"aead.dev/minisign"
	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	"helm.sh/helm/v4/pkg/provenance"
)

// verify checks the release's checksums and signatures with the public keys in the checkout.
func (p publication) verify() error {
	sums, err := os.ReadFile(filepath.Join(p.from, "SHA256SUMS"))
	if err != nil {
		return err
	}
	return errors.Join(p.verifySums(string(sums)), p.verifyMinisign(sums), p.verifyCosign(sums), p.verifyChart())
}

func (p publication) verifySums(sums string) error {
	for line := range strings.Lines(sums) {
		want, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		got, err := sumOf(filepath.Join(p.from, name))
		if err != nil {
			return err
		}
		if got.sum != want {
			return fmt.Errorf("%s has the checksum %s; SHA256SUMS lists %s", name, got.sum, want)
		}
	}
	return nil
}

func (p publication) verifyMinisign(sums []byte) error {
	key, err := minisign.PublicKeyFromFile(filepath.Join(p.checkout, publicMinisign))
	if err != nil {
		return err
	}
	signature, err := os.ReadFile(filepath.Join(p.from, "SHA256SUMS.minisig"))
	if err != nil {
		return err
	}
	if !minisign.Verify(key, sums, signature) {
		return fmt.Errorf("SHA256SUMS.minisig is not by the key in %s", publicMinisign)
	}
	return nil
}

// verifyCosign checks the signatures of the checksums and the provenance. The images are signed with the same key.
func (p publication) verifyCosign(sums []byte) error {
	key, err := publicCosignKey(p.checkout)
	if err != nil {
		return err
	}
	files, err := readBundle(filepath.Join(p.from, "SHA256SUMS.sigstore.json"))
	if err != nil {
		return err
	}
	if m := files.MessageSignature; m == nil || !signed(key, sums, m.Signature) {
		return fmt.Errorf("SHA256SUMS.sigstore.json is not by the key in %s", publicCosign)
	}
	made, err := readBundle(p.file("-provenance.sigstore.json"))
	if err != nil {
		return err
	}
	statement, err := os.ReadFile(p.file("-provenance.json"))
	if err != nil {
		return err
	}
	statement = bytes.TrimSuffix(statement, []byte("\n"))
	e := made.Envelope
	if e == nil || len(e.Signatures) != 1 || e.Payload != base64.StdEncoding.EncodeToString(statement) {
		return errors.New("the signed provenance is not that of the release")
	}
	signature, err := base64.StdEncoding.DecodeString(e.Signatures[0].Sig)
	if err != nil || !signed(key, dsse.PAE(e.PayloadType, statement), signature) {
		return fmt.Errorf("the provenance is not signed by the key in %s", publicCosign)
	}
	return nil
}

func publicCosignKey(checkout string) (*ecdsa.PublicKey, error) {
	text, err := os.ReadFile(filepath.Join(checkout, publicCosign))
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(text)
	if block == nil {
		return nil, fmt.Errorf("%s is not a PEM file", publicCosign)
	}
	parsed, err := x509.ParsePKIXPublicKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	key, ok := parsed.(*ecdsa.PublicKey)
	if !ok {
		return nil, fmt.Errorf("%s is not an ECDSA key", publicCosign)
	}
	return key, nil
}

func readBundle(file string) (bundle, error) {
	var b bundle
	text, err := os.ReadFile(file)
	if err != nil {
		return b, err
	}
	return b, json.Unmarshal(text, &b)
}

func signed(key *ecdsa.PublicKey, content, signature []byte) bool {
	digest := sha256.Sum256(content)
	return ecdsa.VerifyASN1(key, digest[:], signature)
}

func (p publication) verifyChart() error {
	ring, err := publicPGPKey(p.checkout)
	if err != nil {
		return err
	}
	chart, err := os.ReadFile(p.chart())
	if err != nil {
		return err
	}
	signature, err := os.ReadFile(p.chart() + ".prov")
	if err != nil {
		return err
	}
	_, err = (&provenance.Signatory{KeyRing: ring}).Verify(chart, signature, filepath.Base(p.chart()))
	return err
}
