package main

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// entry is a file, a link or a directory in an archive. It is a directory if source and link are empty.
type entry struct {
	name   string
	source string
	link   string
	mode   int64
}

// tree is the content of an archive. Equal trees with equal times produce identical archives on any machine.
type tree []entry

// write writes the tree as a tar file. All entries are owned by root.
func (t tree) write(w io.Writer, when time.Time) error {
	archive := tar.NewWriter(w)
	for _, e := range slices.SortedFunc(slices.Values(t), func(a, b entry) int { return strings.Compare(a.name, b.name) }) {
		if err := e.write(archive, when); err != nil {
			return err
		}
	}
	return archive.Close()
}

func (e entry) write(archive *tar.Writer, when time.Time) error {
	header := tar.Header{Name: e.name, Mode: e.mode, ModTime: when, Format: tar.FormatPAX}
	switch {
	case e.link != "":
		header.Typeflag, header.Linkname = tar.TypeSymlink, e.link
		return archive.WriteHeader(&header)
	case e.source == "":
		header.Typeflag, header.Name = tar.TypeDir, e.name+"/"
		return archive.WriteHeader(&header)
	}
	content, err := os.ReadFile(e.source)
	if err != nil {
		return err
	}
	header.Typeflag, header.Size = tar.TypeReg, int64(len(content))
	if err := archive.WriteHeader(&header); err != nil {
		return err
	}
	_, err = archive.Write(content)
	return err
}

// compress writes the tree as a tar.gz file.
func (t tree) compress(file string, when time.Time) error {
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	defer out.Close()
	compressor, err := gzip.NewWriterLevel(out, gzip.BestCompression)
	if err != nil {
		return err
	}
	if err := t.write(compressor, when); err != nil {
		return err
	}
	if err := compressor.Close(); err != nil {
		return err
	}
	return out.Close()
}

// zip writes the files of the tree as a zip file.
func (t tree) zip(file string, when time.Time) error {
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	defer out.Close()
	archive := zip.NewWriter(out)
	for _, e := range slices.SortedFunc(slices.Values(t), func(a, b entry) int { return strings.Compare(a.name, b.name) }) {
		content, err := os.ReadFile(e.source)
		if err != nil {
			return err
		}
		header := &zip.FileHeader{Name: e.name, Method: zip.Deflate, Modified: when}
		header.SetMode(fs.FileMode(e.mode))
		w, err := archive.CreateHeader(header)
		if err != nil {
			return err
		}
		if _, err := w.Write(content); err != nil {
			return err
		}
	}
	if err := archive.Close(); err != nil {
		return err
	}
	return out.Close()
}

func treeOf(dir string) (tree, error) {
	var t tree
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		name := strings.TrimPrefix(strings.TrimPrefix(path, dir), "/")
		switch {
		case err != nil || name == "":
			return err
		case d.IsDir():
			t = append(t, entry{name: name, mode: 0o755})
		default:
			t = append(t, entry{name: name, source: path, mode: 0o644})
		}
		return nil
	})
	return t, err
}
