package lastknown

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"slices"
)

// Authorities returns the sorted SHA-256 hashes of the public keys in a certificate bundle, like kubeadm's
// discovery-token-ca-cert-hash. A certificate renewed with the same key has the same hash.
func Authorities(bundle []byte) (hashes []string) {
	for len(bundle) > 0 {
		var block *pem.Block
		if block, bundle = pem.Decode(bundle); block == nil {
			break
		}
		if cert, err := x509.ParseCertificate(block.Bytes); err == nil && block.Type == "CERTIFICATE" && len(block.Headers) == 0 {
			sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
			hashes = append(hashes, hex.EncodeToString(sum[:]))
		}
	}
	slices.Sort(hashes)
	return slices.Compact(hashes)
}

// sameCluster reports whether two lists have an authority in common. A rotation adds the new authority before it
// removes the old one. Without authorities, clusters with the same URL cannot be distinguished.
func sameCluster(a, b []string) bool {
	return len(a) == 0 && len(b) == 0 || slices.ContainsFunc(a, func(hash string) bool { return slices.Contains(b, hash) })
}
