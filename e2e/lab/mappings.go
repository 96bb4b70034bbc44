package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// The host limits the number of mappings per process. In user-mode Linux, each page of a guest's process is a mapping in one
// of the host's processes. At the limit, the guest's kernel retries the same page forever.

const (
	mappingsLimit = "/proc/sys/vm/max_map_count"
	// manyPages is the number of resident pages below which a process is not examined.
	manyPages = 1 << 15
)

// watchMappings calls fail when a process reaches the host's limit on mappings. proc is /proc or, in tests, a directory
// like it.
func watchMappings(proc string, every time.Duration, stop <-chan struct{}, fail func(error)) {
	text, err := os.ReadFile(mappingsLimit)
	if err != nil {
		return
	}
	limit, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return
	}
	for tick := time.NewTicker(every); ; {
		select {
		case <-stop:
			tick.Stop()
			return
		case <-tick.C:
		}
		if most := mostMappings(proc); most >= limit-limit/100 {
			fail(fmt.Errorf("a process in user-mode Linux needs too much memory: it has %d mappings of one page each, and this machine's "+
				"vm.max_map_count is %d; use a smaller process, or sysctl -w vm.max_map_count=%d", most, limit, 4*limit))
			return
		}
	}
}

func mostMappings(proc string) (most int) {
	processes, _ := filepath.Glob(filepath.Join(proc, "[0-9]*"))
	for _, p := range processes {
		statm, err := os.ReadFile(filepath.Join(p, "statm"))
		fields := strings.Fields(string(statm))
		if err != nil || len(fields) < 2 {
			continue // the process has ended
		}
		if resident, err := strconv.Atoi(fields[1]); err != nil || resident < manyPages {
			continue
		}
		maps, _ := os.ReadFile(filepath.Join(p, "maps"))
		most = max(most, bytes.Count(maps, []byte("\n")))
	}
	return most
}
