package manifests

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
	"github.com/kube-ipvs/kube-ipvs/internal/watch"
)

// maxManifest is the maximum size of a file. 10,000 Services with ten endpoints each take about 30 MiB of YAML.
const maxManifest = 256 << 20

// directory contains the objects of a manifest directory, by file.
type directory struct {
	path       string
	log        *zap.Logger
	reader     *manifestReader
	files      map[string]*manifestFile
	unfinished time.Duration
	read       bool
	// problem is non-nil while the directory cannot be read.
	problem []model.Problem
}

type manifestFile struct {
	sum      [sha256.Size]byte // of the last version that was used; zero if reading failed
	info     fs.FileInfo       // of that version
	records  []*watch.Record
	problems []model.Problem
	// held is a newer version that may be incomplete, unchanged since heldSince; zero if there is none.
	held      [sha256.Size]byte
	heldSince time.Time
}

func newDirectory(path string, store *watch.Store, log *zap.Logger) *directory {
	return &directory{path: path, log: log, reader: newManifestReader(store), files: make(map[string]*manifestFile)}
}

// If the directory cannot be read, all objects remain in use.
func (d *directory) scan() (changed bool, err error) {
	names, err := manifestNames(d.path)
	if err == nil && len(names) == 0 {
		// An unmounted volume looks like an empty directory. Treating it as a cluster without Services would remove every
		// Service from this node.
		err = errors.New("contains no .yaml, .yml or .json file. To serve no Services, add a file that contains only a comment")
	}
	if err != nil {
		p := watch.Problems{Object: model.FileRef(d.path)}
		p.Add("", "", "cannot be read: %v. Objects read earlier remain in use", err)
		changed = !slices.Equal(d.problem, p.Done())
		d.problem = p.Done()
		return changed, err
	}
	changed = !d.read || d.problem != nil
	d.read, d.problem = true, nil
	changed = d.forget(names) || changed
	for _, name := range names {
		changed = d.scanFile(name) || changed
	}
	return changed, nil
}

func (d *directory) forget(names []string) (changed bool) {
	var removed []string
	for name := range d.files {
		if _, exists := slices.BinarySearch(names, name); !exists {
			removed = append(removed, name)
			delete(d.files, name)
		}
	}
	if len(removed) == 0 {
		return false
	}
	slices.Sort(removed)
	d.log.Info("manifests removed", zap.Int("files", len(removed)), zap.Strings("first", removed[:min(len(removed), 10)]))
	return true
}

// manifestNames skips names that begin with a dot: editors use such names, and the kubelet stores the files of a ConfigMap under ..data.
func manifestNames(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		switch strings.ToLower(filepath.Ext(e.Name())) {
		case ".yaml", ".yml", ".json":
			if !strings.HasPrefix(e.Name(), ".") && !e.IsDir() {
				names = append(names, e.Name())
			}
		}
	}
	return names, nil
}

func (d *directory) scanFile(name string) (changed bool) {
	f := d.files[name]
	if f == nil {
		f = &manifestFile{}
		d.files[name] = f
	}
	path := filepath.Join(d.path, name)
	data, info, err := readManifest(path)
	if err != nil {
		if _, gone := os.Lstat(path); errors.Is(gone, fs.ErrNotExist) {
			return false // deleted since the directory was listed: the next scan removes its objects
		}
		return f.reject(name, err)
	}
	sum := sha256.Sum256(data)
	if sum == f.sum {
		f.heldSince = time.Time{}
		return false
	}
	parsed := d.reader.read(name, data)
	if f.mayBeIncomplete(parsed, data, info) && d.hold(name, f, sum) {
		return false
	}
	if len(parsed.ignored) > 0 {
		d.log.Debug("manifest contains kinds that are not used", zap.String("file", name), zap.Strings("kinds", parsed.ignored))
	}
	f.sum, f.info, f.heldSince = sum, info, time.Time{}
	f.accept(parsed)
	d.log.Info("manifest read", zap.String("file", name), zap.Int("objects", len(f.records)))
	return true
}

// readManifest reads only regular files, because reading a named pipe, for example, could block forever.
func readManifest(path string) ([]byte, fs.FileInfo, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil, errors.New("must be a regular file")
	}
	tooLarge := fmt.Errorf("must be smaller than %d MiB", maxManifest>>20)
	if info.Size() > maxManifest {
		return nil, nil, tooLarge
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = file.Close() }() // only read from
	data, err := io.ReadAll(io.LimitReader(file, maxManifest+1))
	switch {
	case err != nil:
		return nil, nil, err
	case len(data) > maxManifest:
		return nil, nil, tooLarge // the file has grown since it was opened
	case len(data) == 0:
		// A program that writes a file in place truncates it first.
		return nil, nil, errors.New("the file is empty. To remove its objects, delete the file")
	}
	return data, info, nil
}

// withoutPath drops the path, because the message already names the file.
func withoutPath(err error) error {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err
	}
	return err
}

// reject keeps the objects of a file that cannot be read and reports whether its Problem is new.
func (f *manifestFile) reject(name string, err error) (changed bool) {
	p := watch.Problems{Object: model.FileRef(name)}
	p.Add("", "", "cannot be used: %v", withoutPath(err))
	list := p.Done()
	noteKept(list, len(f.records))
	changed = !slices.Equal(f.problems, list)
	f.sum, f.problems, f.heldSince = [sha256.Size]byte{}, list, time.Time{}
	return changed
}

// accept puts a new version of the file into effect. Objects that a mistake may have removed keep their last good version:
//
//   - if a document cannot be parsed: all objects that the new version lacks, because that document may contain them
//   - objects that have become unusable
func (f *manifestFile) accept(parsed *manifest) {
	current := make(map[model.ObjectRef]*watch.Record, len(parsed.records))
	for _, r := range slices.Backward(parsed.records) {
		current[r.Key()] = r // the first of several objects with the same name
	}
	kept := 0
	for _, old := range f.records {
		now := current[old.Key()]
		switch {
		case now == nil && len(parsed.problems) > 0:
			current[old.Key()] = old
			parsed.records = append(parsed.records, old)
			kept++
		case now != nil && old.Usable() && !now.Usable() && len(now.Problems) > 0:
			wrong := now.Problems
			*now = *old
			now.Problems = wrong
			for i := range wrong {
				wrong[i].Reason += ". The last good version remains in use"
			}
		}
	}
	noteKept(parsed.problems, kept)
	f.records, f.problems = parsed.records, parsed.problems
}

func noteKept(list []model.Problem, objects int) {
	for i := range list {
		if objects > 0 {
			list[i].Reason += fmt.Sprintf(". Objects that keep their last good version: %d", objects)
		}
	}
}

// If two files define the same object, the first file by name wins.
func (d *directory) lists() map[model.Kind][]*watch.Record {
	lists := map[model.Kind][]*watch.Record{model.KindService: nil, model.KindEndpointSlice: nil, model.KindNode: nil, model.KindFile: nil}
	definedIn := make(map[model.ObjectRef]string)
	for _, name := range slices.Sorted(maps.Keys(d.files)) {
		f := d.files[name]
		problems := slices.Clone(f.problems)
		for _, r := range f.records {
			if first, ok := definedIn[r.Key()]; ok {
				problems = append(problems, definedTwice(name, first, r))
				continue
			}
			definedIn[r.Key()] = name
			lists[r.Key().Kind] = append(lists[r.Key().Kind], r)
		}
		lists[model.KindFile] = append(lists[model.KindFile], watch.FileRecord(name, problems))
	}
	lists[model.KindFile] = append(lists[model.KindFile], watch.FileRecord(d.path, d.problem))
	return lists
}

func definedTwice(file, first string, r *watch.Record) model.Problem {
	p := watch.Problems{Object: model.FileRef(file)}
	if r.Key().Kind == model.KindService {
		p.Service = model.ServiceID{Namespace: r.Namespace, Name: r.Name}
	}
	p.AddWithRemedy("metadata.name", r.Key().String(), "is already defined in "+first+", whose version is used", "remove one of them")
	return p.Done()[0]
}
