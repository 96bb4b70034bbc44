package watch

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/kube-ipvs/kube-ipvs/internal/model"
)

// maxManifest bounds a file. 10,000 Services with ten endpoints each are about 30 MiB of YAML.
const maxManifest = 256 << 20

// directory is what the manifests of a directory say, file by file.
type directory struct {
	path   string
	log    *zap.Logger
	reader *manifestReader
	files  map[string]*fileState
	// read says that the directory has been read at least once.
	read bool
	// problem is why it cannot be read now.
	problem []model.Problem
	// version counts the changes of all this.
	version int
}

// fileState is what one file says, and what of it is still in force.
type fileState struct {
	sum      [sha256.Size]byte
	info     fs.FileInfo // at the last reading; nil if it failed
	readAt   time.Time
	records  []*record
	problems []model.Problem
}

func newDirectory(path string, c converter, log *zap.Logger) *directory {
	return &directory{path: path, log: log, reader: newManifestReader(c), files: make(map[string]*fileState)}
}

// scan reads what has changed. A directory that cannot be read takes nothing away.
func (d *directory) scan() error {
	names, err := manifestNames(d.path)
	if err == nil && len(names) == 0 {
		// A directory that is not mounted yet, or no longer, looks like this. Taken for a cluster without Services, it would
		// take every Service from this node.
		err = errors.New("it has no .yaml, .yml or .json file; if no Service is wanted, put one there with only a comment in it")
	}
	if err != nil {
		p := problems{object: d.path}
		p.add("", "", "cannot be read: %v. Everything read from it before stays in force", err)
		d.problem = p.done()
		d.version++
		return err
	}
	if !d.read || d.problem != nil {
		d.read, d.problem = true, nil
		d.version++
	}
	for name := range d.files {
		if !slices.Contains(names, name) {
			d.log.Info("manifest is gone, and its objects with it", zap.String("file", name))
			delete(d.files, name)
			d.version++
		}
	}
	for _, name := range names {
		f := d.files[name]
		if f == nil {
			f = &fileState{}
			d.files[name] = f
		}
		d.scanFile(name, f)
	}
	return nil
}

// manifestNames lists the manifests of a directory, sorted. Names with a dot in front are the business of editors, and of
// the kubelet, which keeps a ConfigMap's files under ..data.
func manifestNames(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		switch filepath.Ext(e.Name()) {
		case ".yaml", ".yml", ".json":
			if !strings.HasPrefix(e.Name(), ".") && !e.IsDir() {
				names = append(names, e.Name())
			}
		}
	}
	return names, nil
}

func (d *directory) scanFile(name string, f *fileState) {
	path, now := filepath.Join(d.path, name), time.Now()
	info, err := os.Stat(path)
	if err == nil && f.unchanged(info) {
		return
	}
	var data []byte
	if err == nil {
		data, err = readManifest(path, info)
	}
	if err != nil {
		f.keep(name, "cannot be used: "+plain(err).Error())
		d.version++
		return
	}
	sum := sha256.Sum256(data)
	same := f.info != nil && sum == f.sum
	f.sum, f.info, f.readAt = sum, info, now
	if same {
		return
	}
	d.version++
	read := d.reader.read(name, data)
	if len(read.ignored) > 0 {
		d.log.Debug("kinds ignored", zap.String("file", name), zap.Strings("kinds", read.ignored))
	}
	f.take(read)
	d.log.Info("manifest read", zap.String("file", name), zap.Int("objects", len(f.records)))
}

// unchanged says that a file need not be read again. One that was modified shortly before its last reading may have been
// modified again within the same tick of the file system's clock.
func (f *fileState) unchanged(now fs.FileInfo) bool {
	const tick = 2 * time.Second
	return f.info != nil && os.SameFile(f.info, now) && f.info.Size() == now.Size() && f.info.ModTime().Equal(now.ModTime()) &&
		f.readAt.Sub(now.ModTime()) > tick
}

// readManifest reads a regular file; anything else could block for ever.
func readManifest(path string, info fs.FileInfo) ([]byte, error) {
	if !info.Mode().IsRegular() {
		return nil, errors.New("must be a regular file")
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // only read from
	data, err := io.ReadAll(io.LimitReader(file, maxManifest+1))
	switch {
	case err != nil:
		return nil, err
	case len(data) > maxManifest:
		return nil, fmt.Errorf("must be smaller than %d MiB", maxManifest>>20)
	case len(data) == 0:
		// Every program that writes a file in place empties it first.
		return nil, errors.New("is empty; delete the file if its objects are to go")
	}
	return data, nil
}

// plain drops the path from an error: the Problem names the file.
func plain(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}

// keep leaves in force what the file said when it could last be read.
func (f *fileState) keep(name, message string) {
	f.info = nil
	p := problems{object: name}
	p.add("", "", "%s%s", message, staysInForce(len(f.records)))
	f.problems = p.done()
}

func staysInForce(objects int) string {
	if objects == 0 {
		return ""
	}
	return fmt.Sprintf(". %d objects of its last good version stay in force", objects)
}

// take accepts a new version of the file. While something in it is wrong, no object disappears because of that:
//
//   - if a document could not be read, the objects that the new version lacks are kept, since one of them may be that document
//   - an object that was of use and no longer is keeps its last good version
func (f *fileState) take(read *manifest) {
	before := make(map[objectKey]*record, len(f.records))
	for _, r := range f.records {
		if before[r.key()] == nil { // the first of two claims has it
			before[r.key()] = r
		}
	}
	f.records, f.problems = nil, read.problems
	for _, r := range read.records {
		old := before[r.key()]
		if old != nil && old.asks() && !r.asks() && len(r.problems) > 0 {
			r = lastGood(old, r.problems)
		}
		delete(before, r.key())
		f.records = append(f.records, r)
	}
	if len(f.problems) > 0 {
		kept := slices.SortedFunc(maps.Values(before), func(a, b *record) int { return strings.Compare(a.key().String(), b.key().String()) })
		for i := range f.problems {
			f.problems[i].Message += staysInForce(len(kept))
		}
		f.records = append(f.records, kept...)
	}
}

// lastGood is the last good version of an object, with what is wrong with the present one.
func lastGood(old *record, wrong []model.Problem) *record {
	r := *old
	r.problems = slices.Clone(wrong)
	for i := range r.problems {
		r.problems[i].Message += ". The last good version stays in force"
	}
	return &r
}

// lists is everything that the files say. Of two files that claim one object, the first by name has it.
func (d *directory) lists() map[Kind][]*record {
	lists := map[Kind][]*record{KindService: nil, KindEndpointSlice: nil, KindNode: nil, KindFile: nil}
	claims := make(map[objectKey]string)
	for _, name := range slices.Sorted(maps.Keys(d.files)) {
		f := d.files[name]
		about := newRecord(KindFile, "", name)
		about.problems = slices.Clone(f.problems)
		for _, r := range f.records {
			if first, claimed := claims[r.key()]; claimed {
				about.problems = append(about.problems, claimedTwice(name, first, r))
				continue
			}
			claims[r.key()] = name
			lists[r.kind] = append(lists[r.kind], r)
		}
		lists[KindFile] = append(lists[KindFile], about)
	}
	about := newRecord(KindFile, "", d.path)
	about.problems = d.problem
	lists[KindFile] = append(lists[KindFile], about)
	return lists
}

func claimedTwice(file, first string, r *record) model.Problem {
	p := problems{object: file}
	if r.kind == KindService {
		p.service = model.ServiceID{Namespace: r.Namespace, Name: r.Name}
	}
	p.add("metadata.name", r.key().String(), "is already in %s, whose version is used: remove one of them", first)
	return p.done()[0]
}
