package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"os"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"
	"github.com/secure-systems-lab/go-securesystemslib/encrypted"
)

// cosigner makes signatures that cosign can verify with a public key. It signs SHA-256 digests with ECDSA on the curve P-256.
type cosigner struct{ key *ecdsa.PrivateKey }

// cosignKey reads a key from cosign generate-key-pair, or an unencrypted PKCS #8 key.
func cosignKey(text, password string) (*cosigner, error) {
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		return nil, errors.New("it is not a PEM file")
	}
	der := block.Bytes
	switch block.Type {
	case "PRIVATE KEY":
	case "ENCRYPTED SIGSTORE PRIVATE KEY", "ENCRYPTED COSIGN PRIVATE KEY":
		var err error
		if der, err = encrypted.Decrypt(der, []byte(password)); err != nil {
			return nil, fmt.Errorf("decrypt it with RELEASE_COSIGN_PASSWORD: %w", err)
		}
	default:
		return nil, fmt.Errorf("it is of the type %q; use a key of cosign generate-key-pair", block.Type)
	}
	parsed, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, err
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || key.Curve != elliptic.P256() {
		return nil, errors.New("it must be an ECDSA key on the curve P-256")
	}
	return &cosigner{key}, nil
}

func (c *cosigner) sign(content []byte) ([]byte, error) {
	digest := sha256.Sum256(content)
	return ecdsa.SignASN1(rand.Reader, c.key, digest[:])
}

// bundle is a Sigstore bundle, which contains the signature that cosign verifies.
type bundle struct {
	MediaType            string `json:"mediaType"`
	VerificationMaterial struct {
		PublicKey struct {
			Hint string `json:"hint"`
		} `json:"publicKey"`
	} `json:"verificationMaterial"`
	MessageSignature *messageSignature `json:"messageSignature,omitempty"`
	Envelope         *dsse.Envelope    `json:"dsseEnvelope,omitempty"`
}

type messageSignature struct {
	Digest    messageDigest `json:"messageDigest"`
	Signature []byte        `json:"signature"`
}

type messageDigest struct {
	Algorithm string `json:"algorithm"`
	Digest    []byte `json:"digest"`
}

func (c *cosigner) writeBundle(file string, b bundle) error {
	der, err := x509.MarshalPKIXPublicKey(c.key.Public())
	if err != nil {
		return err
	}
	hint := sha256.Sum256(der)
	b.MediaType = "application/vnd.dev.sigstore.bundle.v0.3+json"
	b.VerificationMaterial.PublicKey.Hint = base64.StdEncoding.EncodeToString(hint[:])
	text, err := json.Marshal(b)
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}

// signFile signs content, and writes the signature to file as a bundle.
func (c *cosigner) signFile(file string, content []byte) error {
	signature, err := c.sign(content)
	if err != nil {
		return err
	}
	digest := sha256.Sum256(content)
	return c.writeBundle(file, bundle{MessageSignature: &messageSignature{messageDigest{"SHA2_256", digest[:]}, signature}})
}

// envelope wraps an in-toto statement in a signed envelope.
func (c *cosigner) envelope(statement []byte) (*dsse.Envelope, error) {
	const inToto = "application/vnd.in-toto+json"
	signature, err := c.sign(dsse.PAE(inToto, statement))
	if err != nil {
		return nil, err
	}
	return &dsse.Envelope{
		PayloadType: inToto, Payload: base64.StdEncoding.EncodeToString(statement),
		Signatures: []dsse.Signature{{Sig: base64.StdEncoding.EncodeToString(signature)}},
	}, nil
}
