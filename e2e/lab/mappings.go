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

// Each page of a process in user-mode Linux is a mapping of one of the host's processes, and the host limits those. At the limit, the
// guest's kernel tries the same page for ever, so the process hangs with its CPU busy.

const (
	mappingsLimit = "/proc/sys/vm/max_map_count"
	// manyPages is a number of pages below which the mappings are not worth counting.
	manyPages = 1 << 15
)

// watchMappings calls fail when a process below a folder such as /proc has as many mappings as the host allows.
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
			fail(fmt.Errorf("a process in user-mode Linux needs more memory than it can have: %d pages are mapped one by one, and this machine's "+
				"vm.max_map_count is %d; use a smaller process, or sysctl -w vm.max_map_count=%d", most, limit, 4*limit))
			return
		}
	}
}

// mostMappings returns how many mappings the process with the most of them has.
func mostMappings(proc string) (most int) {
	processes, _ := filepath.Glob(filepath.Join(proc, "[0-9]*"))
	for _, p := range processes {
		statm, err := os.ReadFile(filepath.Join(p, "statm"))
		fields := strings.Fields(string(statm))
		if err != nil || len(fields) < 2 {
			continue // it has ended
		}
		if resident, err := strconv.Atoi(fields[1]); err != nil || resident < manyPages {
			continue
		}
		maps, _ := os.ReadFile(filepath.Join(p, "maps"))
		most = max(most, bytes.Count(maps, []byte("\n")))
	}
	return most
}
