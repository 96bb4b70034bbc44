// Package lastknown keeps the last known state of the cluster in a file. A node that boots while the API server is
// unavailable can then serve endpoints on other nodes.
//
// The file is compressed JSON, one value per line: a header, the Services, the Nodes, and a checksum. It contains no
// secrets. Writes replace the file atomically. A damaged file is rejected as a whole.
//
// May import: agent and model.
package lastknown

import (
	"bufio"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/netip"
	"os"
	"time"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

const (
	magic = "kube-ipvs snapshot"
	// version must change with the model; otherwise TestFormat fails.
	version = 4
)

// Identity identifies the node and the cluster that a file belongs to.
type Identity struct {
	Node      string `json:"node"`
	APIServer string `json:"apiServer"`
	// Authorities identifies the cluster, because a new cluster may have the URL of an old one. It contains the
	// hashes of the certificate authorities that the agent trusts for the API server. It is empty if the agent trusts
	// the system's authorities, or every certificate.
	Authorities      []string `json:"authorities"`
	ServiceProxyName string   `json:"serviceProxyName"`
}

// State is the last known state of the cluster.
type State struct {
	// At is when the state was last known to be up to date.
	At       time.Time
	Services []*model.Service
	Nodes    []*model.Node
	Contacts []netip.AddrPort
}

type header struct {
	Magic   string `json:"magic"`
	Version int    `json:"version"`
	Identity
	At       time.Time        `json:"at"`
	Services int              `json:"services"`
	Nodes    int              `json:"nodes"`
	Contacts []netip.AddrPort `json:"contacts"`
}

type trailer struct {
	SHA256 string `json:"sha256"`
}

// Write replaces the file. The temporary file has a fixed name, so interrupted writes leave at most one file.
func Write(path string, id Identity, s *State) (err error) {
	temporary, err := os.OpenFile(path+".new", os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, temporary.Close(), os.Remove(temporary.Name()))
		}
	}()
	if err := encode(temporary, id, s); err != nil {
		return err
	}
	if err := temporary.Sync(); err != nil {
		return err
	}
	if err := os.Rename(temporary.Name(), path); err != nil {
		return err
	}
	return temporary.Close()
}

func encode(to io.Writer, id Identity, s *State) error {
	compressed, err := gzip.NewWriterLevel(to, gzip.BestSpeed)
	if err != nil {
		return err
	}
	sum := sha256.New()
	lines := json.NewEncoder(io.MultiWriter(compressed, sum))
	h := header{Magic: magic, Version: version, Identity: id, At: s.At, Services: len(s.Services), Nodes: len(s.Nodes), Contacts: s.Contacts}
	if err := lines.Encode(h); err != nil {
		return err
	}
	for _, svc := range s.Services {
		if err := lines.Encode(svc); err != nil {
			return err
		}
	}
	for _, node := range s.Nodes {
		if err := lines.Encode(node); err != nil {
			return err
		}
	}
	if err := json.NewEncoder(compressed).Encode(trailer{hex.EncodeToString(sum.Sum(nil))}); err != nil {
		return err
	}
	return compressed.Close()
}

// Read returns the state in a file. It rejects a file with a different identity, and a file older than maxAge. If there
// is no file, the error is fs.ErrNotExist.
func Read(path string, id Identity, now time.Time, maxAge time.Duration) (*State, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	return decode(file, id, now, maxAge)
}

func decode(from io.Reader, id Identity, now time.Time, maxAge time.Duration) (*State, error) {
	compressed, err := gzip.NewReader(bufio.NewReader(from))
	if err != nil {
		return nil, damaged(err)
	}
	r := &reader{lines: bufio.NewReader(compressed), sum: sha256.New()}
	var h header
	if err := r.next(&h); err != nil {
		return nil, err
	}
	if err := h.check(id, now, maxAge); err != nil {
		return nil, err
	}
	s := &State{At: h.At, Contacts: h.Contacts}
	for range h.Services {
		svc := &model.Service{}
		if err := r.next(svc); err != nil {
			return nil, err
		}
		s.Services = append(s.Services, svc)
	}
	for range h.Nodes {
		node := &model.Node{}
		if err := r.next(node); err != nil {
			return nil, err
		}
		s.Nodes = append(s.Nodes, node)
	}
	sum := hex.EncodeToString(r.sum.Sum(nil))
	var t trailer
	if err := r.next(&t); err != nil {
		return nil, err
	}
	if t.SHA256 != sum {
		return nil, damaged(errors.New("the checksum is wrong"))
	}
	if _, err := r.lines.ReadByte(); !errors.Is(err, io.EOF) {
		return nil, damaged(errors.New("there is data after the checksum"))
	}
	return s, nil
}

func damaged(err error) error { return fmt.Errorf("the file is damaged: %w", err) }

func (h *header) check(id Identity, now time.Time, maxAge time.Duration) error {
	switch age := now.Sub(h.At); {
	case h.Magic != magic:
		return errors.New("the file is not a kube-ipvs snapshot")
	case h.Version != version:
		return fmt.Errorf("the file has format %d; this version of kube-ipvs uses format %d", h.Version, version)
	case h.Node != id.Node:
		return fmt.Errorf("the file is from node %q, not from %q", h.Node, id.Node)
	case h.APIServer != id.APIServer:
		return fmt.Errorf("the file is from the API server %s, not from %s", h.APIServer, id.APIServer)
	case !sameCluster(h.Authorities, id.Authorities):
		return fmt.Errorf("the file is from a different cluster with the same API server address (%s): "+
			"the agent trusts none of the certificate authorities in the file", h.APIServer)
	case h.ServiceProxyName != id.ServiceProxyName:
		return fmt.Errorf("the file is from an agent with the service proxy name %q, not %q", h.ServiceProxyName, id.ServiceProxyName)
	case age > maxAge:
		return fmt.Errorf("the file is %s old; the limit is %s (--snapshot-max-age)", age.Round(time.Second), maxAge)
	case age < -maxAge:
		return fmt.Errorf("the file is from %s, %s ahead of the node's clock; set the clock", h.At.Format(time.RFC3339), -age.Round(time.Second))
	}
	return nil
}

type reader struct {
	lines *bufio.Reader
	sum   hash.Hash
}

func (r *reader) next(into any) error {
	line, err := r.lines.ReadBytes('\n')
	if err != nil {
		return damaged(err)
	}
	_, _ = r.sum.Write(line)
	if err := json.Unmarshal(line, into); err != nil {
		return damaged(err)
	}
	return nil
}
