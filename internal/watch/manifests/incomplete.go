package manifests

import (
	"crypto/sha256"
	"io/fs"
	"os"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
	"github.com/kube-ipvs/kube-ipvs/internal/watch"
)

// mayBeIncomplete reports whether the write of a version may still be in progress: the file was written in place, and the version lost
// objects or parts of objects, or ends in the middle of a line. A file renamed over the old file is complete. If a document is invalid,
// accept keeps the lost objects.
func (f *manifestFile) mayBeIncomplete(parsed *manifest, data []byte, info fs.FileInfo) bool {
	if f.info == nil || !os.SameFile(f.info, info) || len(parsed.problems) > 0 {
		return false
	}
	if !strings.ContainsRune("\n}]", rune(data[len(data)-1])) { // JSON files often do not end with a newline
		return true
	}
	extents := make(map[model.ObjectRef]int, len(parsed.records))
	for _, r := range parsed.records {
		extents[r.Key()] = extent(r)
	}
	for _, old := range f.records {
		if now, exists := extents[old.Key()]; !exists || now < extent(old) {
			return true
		}
	}
	return false
}

// extent returns the size of an object: the number of its addresses and ports, or of its ports and endpoints.
func extent(r *watch.Record) (n int) {
	if s := r.Service; s != nil {
		n += len(s.ClusterIPs) + len(s.ExternalIPs) + len(s.LoadBalancerIPs) + len(s.SourceRanges) + len(s.Ports)
		for _, port := range s.Ports {
			if port.NodePort != 0 {
				n++
			}
		}
	}
	if r.Slice != nil {
		n += len(r.Slice.Ports) + len(r.Slice.Endpoints)
	}
	return n
}

// hold reports whether a version that may be incomplete has changed too recently to be used.
func (d *directory) hold(name string, f *manifestFile, sum [sha256.Size]byte) bool {
	if f.heldSince.IsZero() || f.held != sum {
		if f.heldSince.IsZero() {
			d.log.Info("manifest lost objects or endpoints and may be incomplete; keeping the previous version until it stops changing",
				zap.String("file", name), zap.Duration("for", d.unfinished))
		}
		f.held, f.heldSince = sum, time.Now()
	}
	return time.Since(f.heldSince) < d.unfinished
}

// held returns the time until the first held version can be used; 0 if there is none. If a held version could not be read in time, the
// next attempt is after d.unfinished.
func (d *directory) held() (wait time.Duration) {
	for _, f := range d.files {
		if f.heldSince.IsZero() {
			continue
		}
		left := time.Until(f.heldSince.Add(d.unfinished))
		if left <= 0 {
			left = d.unfinished
		}
		if wait == 0 || left < wait {
			wait = left
		}
	}
	return wait
}
