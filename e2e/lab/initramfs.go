package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"
)

// cpioWriter writes the "newc" archive that the kernel unpacks as its first root file system.
type cpioWriter struct {
	w     io.Writer
	inode int
	size  int
	err   error
}

const (
	cpioDir    = 0o040000
	cpioFile   = 0o100000
	cpioDevice = 0o020000
)

func (c *cpioWriter) dir(name string) { c.entry(name, cpioDir|0o755, 0, 0, nil) }
func (c *cpioWriter) file(name string, mode int, data []byte) {
	c.entry(name, cpioFile|mode, 0, 0, data)
}
func (c *cpioWriter) device(name string, major, minor int) {
	c.entry(name, cpioDevice|0o600, major, minor, nil)
}
func (c *cpioWriter) close() error { c.entry("TRAILER!!!", 0, 0, 0, nil); return c.err }

// entry writes the header, the name and the content, each padded to four bytes.
func (c *cpioWriter) entry(name string, mode, major, minor int, data []byte) {
	c.inode++
	links := 1
	if mode&cpioDir != 0 {
		links = 2
	}
	fields := []int{c.inode, mode, 0, 0, links, 0, len(data), 0, 0, major, minor, len(name) + 1, 0}
	var head strings.Builder
	head.WriteString("070701")
	for _, f := range fields {
		fmt.Fprintf(&head, "%08X", f)
	}
	c.write([]byte(head.String()))
	c.write(append([]byte(name), 0))
	c.pad()
	c.write(data)
	c.pad()
}

func (c *cpioWriter) write(p []byte) {
	if c.err != nil {
		return
	}
	n, err := c.w.Write(p)
	c.size += n
	c.err = err
}

func (c *cpioWriter) pad() {
	if over := c.size % 4; over != 0 {
		c.write(make([]byte, 4-over))
	}
}

type initFile struct {
	name string
	mode int
	data []byte
}

// The Go runtime opens /dev/console and /dev/null for missing standard files, so they must exist before devtmpfs.
func writeInitramfs(w io.Writer, files []initFile) error {
	c := &cpioWriter{w: w}
	for _, name := range []string{"dev", "proc", "sys", "tmp", "modules"} {
		c.dir(name)
	}
	c.device("dev/console", 5, 1)
	c.device("dev/null", 1, 3)
	for _, f := range files {
		c.file(f.name, f.mode, f.data)
	}
	return c.close()
}

func initramfsBytes(files []initFile) ([]byte, error) {
	var b bytes.Buffer
	err := writeInitramfs(&b, files)
	return b.Bytes(), err
}
