package controlplane

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"time"
)

// These files are in the control plane's directory.
const (
	authorityCert = "ca.crt"
	servingCert   = "apiserver.crt"
	servingKey    = "apiserver.key"
	tokenKey      = "service-account.key"
)

// A certificate's lifetime starts an hour early, because guest clocks are not exact.
const lifetime = 30 * 24 * time.Hour

// cert and key are in PEM format.
type keyPair struct{ cert, key []byte }

// authority signs the certificates of the server and of its clients.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority() (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("create the authority's key: %w", err)
	}
	template, err := template(pkix.Name{CommonName: "kube-ipvs e2e"})
	if err != nil {
		return nil, err
	}
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage = x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("create the authority's certificate: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("read the authority's certificate: %w", err)
	}
	return &authority{cert: cert, key: key, pem: certPEM(der)}, nil
}

// client returns credentials for a user.
func (a *authority) client(user string, groups []string) (keyPair, error) {
	template, err := template(pkix.Name{CommonName: user, Organization: groups})
	if err != nil {
		return keyPair{}, err
	}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return a.sign(template)
}

// server returns the API server's credentials.
func (a *authority) server(addresses []netip.Addr) (keyPair, error) {
	template, err := template(pkix.Name{CommonName: "kube-apiserver"})
	if err != nil {
		return keyPair{}, err
	}
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	template.DNSNames = []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"}
	for _, address := range addresses {
		template.IPAddresses = append(template.IPAddresses, net.IP(address.AsSlice()))
	}
	return a.sign(template)
}

func (a *authority) sign(template *x509.Certificate) (keyPair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return keyPair{}, fmt.Errorf("create the key of %s: %w", template.Subject, err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return keyPair{}, fmt.Errorf("sign the certificate of %s: %w", template.Subject, err)
	}
	pem, err := keyPEM(key)
	if err != nil {
		return keyPair{}, err
	}
	return keyPair{cert: certPEM(der), key: pem}, nil
}

func template(subject pkix.Name) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("create a serial number: %w", err)
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      subject,
		NotBefore:    now.Add(-time.Hour),
		NotAfter:     now.Add(lifetime),
		KeyUsage:     x509.KeyUsageDigitalSignature,
	}, nil
}

func certPEM(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// The API server does not accept a service account key in PKCS #8.
func keyPEM(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("write a key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}

// makeCredentials creates all keys and certificates.
func (cp *ControlPlane) makeCredentials() error {
	authority, err := newAuthority()
	if err != nil {
		return err
	}
	cp.authority = authority
	addresses, err := cp.servingAddresses()
	if err != nil {
		return err
	}
	serving, err := authority.server(addresses)
	if err != nil {
		return err
	}
	tokens, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("create the service account key: %w", err)
	}
	tokensPEM, err := keyPEM(tokens)
	if err != nil {
		return err
	}
	files := map[string][]byte{authorityCert: authority.pem, servingCert: serving.cert, servingKey: serving.key, tokenKey: tokensPEM}
	for name, content := range files {
		if err := os.WriteFile(cp.file(name), content, 0o600); err != nil {
			return fmt.Errorf("write credentials: %w", err)
		}
	}
	cp.admin, err = cp.ClientFor("kube-ipvs-e2e-admin", "system:masters")
	return err
}

// servingAddresses returns every address at which a client may reach the API server.
func (cp *ControlPlane) servingAddresses() ([]netip.Addr, error) {
	addresses := []netip.Addr{cp.config.BindAddress, cp.config.AdvertiseAddress}
	for _, cidr := range cp.config.ServiceCIDRs {
		prefix, err := netip.ParsePrefix(cidr)
		if err != nil {
			return nil, fmt.Errorf("ServiceCIDRs: %w", err)
		}
		addresses = append(addresses, prefix.Masked().Addr().Next())
	}
	return addresses, nil
}
