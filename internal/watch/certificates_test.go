package watch

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"net"
	"sync/atomic"
	"testing"
	"time"
)

type certificates struct {
	authority              []byte
	good, expired, foreign *tls.Certificate
	current                atomic.Pointer[tls.Certificate]
}

func newCertificates(t *testing.T) *certificates {
	ca, pemCA := newAuthority(t)
	other, _ := newAuthority(t)
	bubble := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC) // when synctest's clock starts
	return &certificates{
		authority: pemCA, good: ca.sign(t, bubble.AddDate(1, 0, 0)), expired: ca.sign(t, bubble), foreign: other.sign(t, bubble.AddDate(1, 0, 0)),
	}
}

func (c *certificates) serve(now *tls.Certificate) { c.current.Store(now) }

func (c *certificates) config() *tls.Config {
	return &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return &tls.Config{Certificates: []tls.Certificate{*c.current.Load()}, NextProtos: []string{"h2"}}, nil
	}}
}

type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) (authority, []byte) {
	key := newKey(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1<<32, 0), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return authority{cert, key}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func (a authority) sign(t *testing.T, until time.Time) *tls.Certificate {
	key := newKey(t)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: time.Unix(0, 0), NotAfter: until, IPAddresses: []net.IP{net.IPv4(192, 0, 2, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}
