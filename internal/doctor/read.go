package doctor

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

// reader reads the host and records failed reads, so doctor never mistakes an unread subject for a healthy one.
type reader struct {
	Host
	f *Facts
}

// unread records why a subject is not checked. It keeps only the first reason.
func (f *Facts) unread(subject string, why error) {
	prefix := subject + ": "
	if !slices.ContainsFunc(f.Unread, func(noted string) bool { return strings.HasPrefix(noted, prefix) }) {
		f.Unread = append(f.Unread, fmt.Sprintf("%s%v", prefix, why))
	}
}

// must reads a file that every host has. It returns "" if the file cannot be read.
func (r reader) must(file, subject string) string {
	text, err := r.ReadFile(file)
	if err != nil {
		r.f.unread(subject, err)
	}
	return string(text)
}

// may reads a file that a host may lack. A missing file is not an error.
func (r reader) may(file, subject string) (text string, exists bool) {
	content, err := r.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.f.unread(subject, err)
	}
	return string(content), err == nil
}

// mayList returns the sorted content of a directory that a host may lack.
func (r reader) mayList(dir, subject string) []string {
	names, err := r.Names(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.f.unread(subject, err)
	}
	return slices.Sorted(slices.Values(names))
}

// mayReadAll reads the files with the suffix in directories that a host may lack.
func (r reader) mayReadAll(subject, suffix string, dirs ...string) (texts []string) {
	for _, dir := range dirs {
		for _, name := range r.mayList(dir, subject) {
			if !strings.HasSuffix(name, suffix) {
				continue
			}
			if text, exists := r.may(dir+"/"+name, subject); exists {
				texts = append(texts, text)
			}
		}
	}
	return texts
}
