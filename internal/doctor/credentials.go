package doctor

import (
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/kube-ipvs/kube-ipvs/internal/finding"
)

// Credential is a certificate or token of the agent or the API server, with its validity period.
type Credential struct {
	Name         string
	Begins, Ends time.Time
	// Renew tells the operator how to replace an expired credential.
	Renew string
}

const (
	serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount/"
	// doctor warns this long before the expiry, but not before the last tenth of the lifetime: some tokens are valid
	// for only an hour.
	expiresSoon     = 30 * 24 * time.Hour
	soonOfLifetime  = 10
	credentials     = "certificates and token"
	serverChecked   = "certificate of the API server"
	renewClient     = "renew it, and restart the agent"
	renewAuthority  = "put the cluster's new CA into this file, and restart the agent"
	renewServer     = "renew it on the control plane (`kubeadm certs renew apiserver`), and restart the API server"
	renewToken      = "renew it; the kubelet renews a pod's token, so see the kubelet's log"
	certificateKind = "CERTIFICATE"
)

type kubeconfig struct {
	Current  string `yaml:"current-context"`
	Contexts []struct {
		Name    string
		Context struct{ Cluster, User string }
	}
	Clusters []struct {
		Name    string
		Cluster kubeconfigCluster
	}
	Users []struct {
		Name string
		User kubeconfigUser
	}
}

type kubeconfigCluster struct {
	Server string
	CA     string `yaml:"certificate-authority"`
	CAData string `yaml:"certificate-authority-data"`
	Name   string `yaml:"tls-server-name"`
}

type kubeconfigUser struct {
	Certificate     string `yaml:"client-certificate"`
	CertificateData string `yaml:"client-certificate-data"`
	Token           string
	TokenFile       string `yaml:"tokenFile"`
	Exec            any
	AuthProvider    any `yaml:"auth-provider"`
}

// used returns the cluster and the user of the current context, the only context that the agent uses.
func (k kubeconfig) used() (cluster kubeconfigCluster, user kubeconfigUser, err error) {
	for _, c := range k.Contexts {
		if c.Name != k.Current {
			continue
		}
		for _, other := range k.Clusters {
			if other.Name == c.Context.Cluster {
				cluster = other.Cluster
			}
		}
		for _, other := range k.Users {
			if other.Name == c.Context.User {
				user = other.User
			}
		}
		return cluster, user, nil
	}
	return cluster, user, fmt.Errorf("it has no context %q", k.Current)
}

func (f *Facts) readCredentials(h reader) {
	if f.setting("manifests", "") != "" {
		return
	}
	file := f.setting("clientConnection.kubeconfig", "")
	if file == "" {
		f.readServiceAccount(h)
		return
	}
	var all kubeconfig
	text, err := h.ReadFile(file)
	if err == nil {
		err = yaml.Unmarshal(text, &all)
	}
	cluster, user, missing := all.used()
	if err == nil {
		err = missing
	}
	if err != nil {
		f.unread(credentials, fmt.Errorf("kubeconfig %s: %w", file, err))
		return
	}
	authorities := f.authorities(h, file, cluster)
	if content, name := h.pemOf(file, "client-certificate", user.Certificate, user.CertificateData); name != "" {
		if first := earliest(parsePEM(content)); first != nil {
			f.addCredential("certificate "+name, first.NotBefore, first.NotAfter, renewClient)
		} else if len(content) > 0 {
			f.unread("certificate "+name, errors.New("it has no certificate"))
		}
	}
	f.addTokens(h, file, user)
	f.readServer(h, f.setting("clientConnection.master", cluster.Server), cluster.Name, authorities)
}

func (f *Facts) readServiceAccount(h reader) {
	file := serviceAccount + "ca.crt"
	content, err := h.ReadFile(file)
	if err != nil {
		f.unread(credentials, fmt.Errorf("the credentials of the agent's ServiceAccount are in its pod; run doctor there (%w)", err))
		return
	}
	token := serviceAccount + "token"
	f.addToken("token "+token, h.must(token, credentials))
	f.readServer(h, f.setting("clientConnection.master", h.APIServer()), "", bundle{file, parsePEM(content)})
}

type bundle struct {
	file string
	all  []*x509.Certificate
}

func (f *Facts) authorities(h reader, file string, cluster kubeconfigCluster) bundle {
	content, name := h.pemOf(file, "certificate-authority", cluster.CA, cluster.CAData)
	return bundle{name, parsePEM(content)}
}

// pemOf returns the PEM content of a kubeconfig field, and a name for it. Inline data takes precedence over a file. The
// name is empty if the field is not set.
func (r reader) pemOf(kubeconfig, field, file, data string) (content []byte, name string) {
	switch {
	case data != "":
		name = fmt.Sprintf("%s (%s-data)", kubeconfig, field)
		content, err := base64.StdEncoding.DecodeString(data)
		if err != nil {
			r.f.unread("certificate "+name, err)
		}
		return content, name
	case file == "":
		return nil, ""
	case !path.IsAbs(file):
		file = path.Join(path.Dir(kubeconfig), file)
	}
	return []byte(r.must(file, "certificate "+file)), file
}

func parsePEM(content []byte) (all []*x509.Certificate) {
	for block, rest := pem.Decode(content); block != nil; block, rest = pem.Decode(rest) {
		if c, err := x509.ParseCertificate(block.Bytes); err == nil && block.Type == certificateKind {
			all = append(all, c)
		}
	}
	return all
}

// earliest returns the certificate that expires first, or nil if there is none.
func earliest(all []*x509.Certificate) *x509.Certificate {
	if len(all) == 0 {
		return nil
	}
	return slices.MinFunc(all, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) })
}

func (f *Facts) addCredential(name string, begins, ends time.Time, renew string) {
	f.Credentials = append(f.Credentials, Credential{name, begins, ends, renew})
}

func (f *Facts) addTokens(h reader, kubeconfig string, user kubeconfigUser) {
	switch {
	case user.TokenFile != "":
		file := user.TokenFile
		if !path.IsAbs(file) {
			file = path.Join(path.Dir(kubeconfig), file)
		}
		f.addToken("token "+file, h.must(file, credentials))
	case user.Token != "":
		f.addToken("token in "+kubeconfig, user.Token)
	case user.Exec != nil || user.AuthProvider != nil:
		f.unread("token", fmt.Errorf("an external program provides it (exec or auth-provider in %s)", kubeconfig))
	}
}

// addToken adds a token, unless it never expires: an opaque token, or a JSON web token without an expiry time.
func (f *Facts) addToken(name, token string) {
	var claims struct{ Exp, Iat, Nbf int64 }
	_, rest, _ := strings.Cut(strings.TrimSpace(token), ".")
	payload, _, signed := strings.Cut(rest, ".")
	if !signed {
		return
	}
	text, err := base64.RawURLEncoding.DecodeString(payload)
	if err == nil {
		err = json.Unmarshal(text, &claims)
	}
	if err != nil {
		f.unread(name, err)
		return
	}
	if claims.Exp != 0 {
		f.addCredential(name, time.Unix(max(claims.Iat, claims.Nbf), 0), time.Unix(claims.Exp, 0), renewToken)
	}
}

// readServer adds the API server's certificate, and the CA that signed it. It ignores the other CAs in the bundle.
func (f *Facts) readServer(h reader, server, name string, authorities bundle) {
	chain, err := f.handshake(h, server, name)
	if err != nil {
		f.unread(serverChecked, err)
	}
	if c := earliest(chain[:min(1, len(chain))]); c != nil {
		f.addCredential("certificate of the API server "+server, c.NotBefore, c.NotAfter, renewServer)
	}
	if len(authorities.all) == 0 {
		if authorities.file != "" {
			f.unread("certificate "+authorities.file, errors.New("it has no certificate"))
		}
		return
	}
	signers := slices.DeleteFunc(slices.Clone(authorities.all), func(ca *x509.Certificate) bool { return !signs(ca, chain) })
	if len(signers) == 0 {
		signers = authorities.all
	}
	last := slices.MaxFunc(signers, func(a, b *x509.Certificate) int { return a.NotAfter.Compare(b.NotAfter) })
	f.addCredential("certificate "+authorities.file, last.NotBefore, last.NotAfter, renewAuthority)
	ended := len(slices.DeleteFunc(slices.Clone(authorities.all), func(c *x509.Certificate) bool { return c.NotAfter.After(f.Now) }))
	if ended > 0 && ended < len(authorities.all) {
		f.OldAuthorities = fmt.Sprintf("%d of %d CAs in %s", ended, len(authorities.all), authorities.file)
	}
}

func signs(ca *x509.Certificate, chain []*x509.Certificate) bool {
	return slices.ContainsFunc(chain, func(c *x509.Certificate) bool { return c.Equal(ca) || c.CheckSignatureFrom(ca) == nil })
}

// handshake returns the certificates that the API server presents, or none if the connection is not encrypted.
func (f *Facts) handshake(h reader, server, name string) ([]*x509.Certificate, error) {
	if server == "" {
		return nil, errors.New("its address is unknown here")
	}
	if !strings.Contains(server, "://") {
		server = "https://" + server
	}
	address, err := url.Parse(server)
	if err != nil || address.Scheme != "https" {
		return nil, err
	}
	host := address.Host
	if address.Port() == "" {
		host += ":443"
	}
	chain, err := h.ServerCertificates(host, name)
	if err != nil {
		return nil, err
	}
	var all []*x509.Certificate
	for _, der := range chain {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}

func checkCredentials(f Facts) []finding.Finding {
	var found []finding.Finding
	for _, c := range f.Credentials {
		ends := c.Ends.UTC().Format(time.DateOnly)
		if c.Ends.Sub(c.Begins) < 48*time.Hour {
			ends = c.Ends.UTC().Format(timeFormat)
		}
		switch left := c.Ends.Sub(f.Now); {
		case left <= 0:
			found = append(found, finding.New(finding.Broken, c.Name, "expired "+ends, nil, c.Renew))
		case left < min(expiresSoon, c.Ends.Sub(c.Begins)/soonOfLifetime):
			found = append(found, finding.New(finding.Warning, c.Name, "expires "+ends, nil, c.Renew))
		}
	}
	if f.OldAuthorities != "" && len(found) == 0 {
		found = finding.One(finding.Notice, "certificates", "some CAs have expired, but the CA that signed the API server's certificate is valid", []string{f.OldAuthorities},
			"remove the old ones")
	}
	return found
}
