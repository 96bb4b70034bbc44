//go:build linux

package daemon

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"k8s.io/client-go/rest"

	"github.com/kube-ipvs/kube-ipvs/internal/agent"
	"github.com/kube-ipvs/kube-ipvs/internal/config"
	"github.com/kube-ipvs/kube-ipvs/internal/lastknown"
	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

func newAuthority(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1<<32, 0), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// A snapshot remains usable after the certificate authority is rotated, even if the agent is not restarted. A rebuilt cluster
// with the same URL must not use it.
func TestSnapshotOfARebuiltCluster(t *testing.T) {
	dir := t.TempDir()
	bundle := filepath.Join(dir, "ca.crt")
	trust := func(certificates ...[]byte) {
		t.Helper()
		if err := os.WriteFile(bundle, slices.Concat(certificates...), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	settings := &config.Settings{SnapshotFile: filepath.Join(dir, "snapshot"), SnapshotMaxAge: time.Hour}
	start := func() *snapshot {
		api := &rest.Config{Host: "https://cluster.example:6443", TLSClientConfig: rest.TLSClientConfig{CAFile: bundle}}
		return openSnapshot(settings, "n1", &Source{api: api}, zap.NewNop())
	}
	write := func(s *snapshot) {
		t.Helper()
		id, err := s.recorder.ID()
		if err == nil {
			err = lastknown.Write(s.path, id, &lastknown.State{At: time.Now()})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	old, next, rebuilt := newAuthority(t), newAuthority(t), newAuthority(t)
	trust(old)
	running := start()
	write(running)
	trust(next, old)
	if s := start(); s.lastKnown() == nil {
		t.Errorf("with an added authority: %v", s.err)
	}
	write(running)
	trust(next)
	if s := start(); s.lastKnown() == nil {
		t.Errorf("with only the new authority: %v", s.err)
	}
	trust(rebuilt)
	if s := start(); s.lastKnown() != nil || s.err == nil || !strings.Contains(s.err.Error(), "from a different cluster") {
		t.Errorf("with a rebuilt cluster, got error %v", s.err)
	}
	if err := os.Remove(bundle); err != nil {
		t.Fatal(err)
	}
	if s := start(); s.lastKnown() != nil || s.err == nil || !strings.Contains(s.err.Error(), "certificate authority") {
		t.Errorf("without a bundle, got error %v", s.err)
	}
}

// The agent may refuse the API server's first lists, because they lack most of what it inherits. Such a state must not replace the snapshot.
func TestOnlyAcceptedStatesAreRecorded(t *testing.T) {
	s := &snapshot{log: zap.NewNop(), source: &Source{
		lastErrors: func() map[model.Kind]error { return nil }, lastContact: func() map[model.Kind]time.Time { return nil },
	}}
	s.observe(&agent.Report{Err: errors.New("the first lists lack most Services")})
	if s.fresh() {
		t.Error("a refused state would be recorded")
	}
	s.observe(&agent.Report{Full: true, Err: errors.New("no memory")})
	if !s.fresh() {
		t.Error("a state that the agent serves would not be recorded")
	}
	var none *snapshot
	none.observe(&agent.Report{})
}

func TestTrustedAuthorities(t *testing.T) {
	a, b := newAuthority(t), newAuthority(t)
	file := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	for what, c := range map[string]struct {
		tls  rest.TLSClientConfig
		want []string
	}{
		"the system's":     {rest.TLSClientConfig{}, nil},
		"everyone":         {rest.TLSClientConfig{Insecure: true}, nil},
		"data":             {rest.TLSClientConfig{CAData: a}, lastknown.Authorities(a)},
		"a file":           {rest.TLSClientConfig{CAFile: file}, lastknown.Authorities(b)},
		"data, not a file": {rest.TLSClientConfig{CAData: a, CAFile: file}, lastknown.Authorities(a)},
	} {
		if got, err := authorities(&rest.Config{TLSClientConfig: c.tls}); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%s: got %v, %v; want %v", what, got, err, c.want)
		}
	}
}

// The log distinguishes between a slow list and an outage.
func TestWhyASnapshotIsServed(t *testing.T) {
	for name, c := range map[string]struct {
		errs map[model.Kind]error
		want string
	}{
		"slow list": {nil, "the API server has not sent all objects yet"},
		"outage":    {map[model.Kind]error{model.KindService: errors.New("connection refused")}, "API server unavailable"},
	} {
		t.Run(name, func(t *testing.T) {
			core, logs := observer.New(zap.InfoLevel)
			s := &snapshot{log: zap.New(core), source: &Source{lastErrors: func() map[model.Kind]error { return c.errs }}}
			s.servedOnce(nil)
			s.servedOnce(agent.ErrKernelNewer)
			for _, line := range logs.All() {
				if !strings.HasPrefix(line.Message, c.want+"; ") {
					t.Errorf("logged %q", line.Message)
				}
			}
			if logs.Len() != 2 {
				t.Errorf("logged %v", logs.All())
			}
		})
	}
}
