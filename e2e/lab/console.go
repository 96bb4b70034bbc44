package main

import (
	"bufio"
	"io"
	"strings"
	"sync"
)

// consoleTail keeps the last lines of the guest's console for the error message if the guest dies.
type consoleTail struct {
	mu    sync.Mutex
	lines []string
	ended chan struct{}
}

const consoleLines = 80

func (c *consoleTail) follow(r io.ReadCloser) {
	defer close(c.ended)
	defer r.Close()
	scanner := bufio.NewScanner(r)
	for scanner.Scan() {
		line := strings.TrimRight(scanner.Text(), "\r")
		if line == "" {
			continue
		}
		c.mu.Lock()
		c.lines = append(c.lines, line)
		if len(c.lines) > consoleLines {
			c.lines = c.lines[1:]
		}
		c.mu.Unlock()
	}
}

func (c *consoleTail) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(c.lines, "\n")
}
