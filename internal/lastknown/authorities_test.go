package lastknown

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"slices"
	"testing"
	"time"
)

func certificate(t *testing.T, key *ecdsa.PrivateKey, serial int64) []byte {
	t.Helper()
	template := &x509.Certificate{SerialNumber: big.NewInt(serial), NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1<<32, 0), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func TestAuthorities(t *testing.T) {
	var keys [2]*ecdsa.PrivateKey
	for i := range keys {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		keys[i] = key
	}
	a, b := certificate(t, keys[0], 1), certificate(t, keys[1], 1)
	of := func(parts ...[]byte) []string { return Authorities(slices.Concat(parts...)) }
	if one := of(a); len(one) != 1 || len(one[0]) != 64 || slices.Equal(one, of(b)) {
		t.Errorf("got hashes %v and %v for two certificates, want one distinct hash each", one, of(b))
	}
	for what, got := range map[string][]string{
		"in another order": of(b, a), "one twice": of(a, b, a), "renewed": of(certificate(t, keys[0], 2), b),
		"with a comment and other blocks": of([]byte("# CA\n"), a, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: []byte("x")}),
			pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")}), b, []byte("end")),
	} {
		if want := of(a, b); len(want) != 2 || !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	if got := of(nil); len(got) > 0 {
		t.Errorf("got hashes %v for an empty bundle", got)
	}
}

// An agent accepts a file if it trusts at least one of the file's authorities, because authorities rotate. A rebuilt
// cluster has the same URL but a different authority.
func TestAuthorityInCommon(t *testing.T) {
	for _, c := range []struct {
		wrote, reads []string
		used         bool
	}{
		{nil, nil, true},
		{[]string{"a"}, []string{"a"}, true},
		{[]string{"a"}, []string{"a", "b"}, true},
		{[]string{"a", "b"}, []string{"b"}, true},
		{[]string{"a"}, []string{"b"}, false},
		{[]string{"a"}, nil, false},
		{nil, []string{"a"}, false},
	} {
		id := self
		id.Authorities = c.wrote
		var file bytes.Buffer
		if err := encode(&file, id, &State{At: noon}); err != nil {
			t.Fatal(err)
		}
		id.Authorities = c.reads
		if _, err := decode(&file, id, noon, time.Hour); (err == nil) != c.used {
			t.Errorf("written with authorities %v, read with %v: got error %v", c.wrote, c.reads, err)
		}
	}
}
