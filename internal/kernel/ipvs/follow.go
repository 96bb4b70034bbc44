package ipvs

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"maps"
	"os"

	"golang.org/x/sys/unix"

	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// Follower reads all virtual servers repeatedly, and decodes only changes since its last read. With 10,000 Services, decoding and sorting
// take far longer than reading, and usually nothing has changed.
type Follower struct {
	backend *Backend
	dump    dumpMemory
	proc    procMemory
	// observed is the last result; nil if it was incomplete.
	observed map[kernel.ServerKey]kernel.ObservedServer
}

// Follow returns a new Follower.
func (b *Backend) Follow() *Follower {
	return &Follower{backend: b, dump: dumpMemory{newMemory[dumped]()}, proc: newProcMemory()}
}

// Read returns the same result as Backend.Read, except that connection counts are current only for destinations with weight 0. The result
// must not be changed.
func (f *Follower) Read(ctx context.Context) (map[kernel.ServerKey]kernel.ObservedServer, error) {
	observed, err := f.read(ctx)
	if err != nil {
		f.observed = nil
		return nil, fmt.Errorf("read IPVS: %w", err)
	}
	return observed, nil
}

func (f *Follower) read(ctx context.Context) (map[kernel.ServerKey]kernel.ObservedServer, error) {
	if err := f.backend.resolve(ctx); err != nil {
		return nil, err
	}
	f.dump.begin()
	if err := f.backend.conn.Walk(ctx, f.backend.request(cmdGetService, nil), f.dump.add); err != nil {
		return nil, fmt.Errorf("dump virtual servers: %w", err)
	}
	file, err := os.Open(procFile)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	procChanged, err := f.proc.read(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", procFile, err)
	}
	if dumpChanged := f.dump.end(); f.observed != nil && !dumpChanged && !procChanged {
		return f.observed, nil
	}
	observed, unsure := join(f.dump.all(), f.proc.all())
	lookedUp, err := f.backend.Lookup(ctx, unsure)
	if err != nil {
		return nil, err
	}
	maps.Copy(observed, lookedUp)
	if f.observed = observed; len(unsure) > 0 {
		f.observed = nil
	}
	return observed, nil
}

// memory contains the results of the last read, by name. The next read drops entries that no longer exist.
type memory[V any] struct {
	entries map[string]*remembered[V]
	reading uint64
	seen    int
	changed bool
}

type remembered[V any] struct {
	value   V
	reading uint64
}

func newMemory[V any]() memory[V] { return memory[V]{entries: map[string]*remembered[V]{}} }

func (m *memory[V]) begin() { m.reading, m.seen, m.changed = m.reading+1, 0, false }

func (m *memory[V]) put(name []byte, value V) *remembered[V] {
	e := &remembered[V]{value: value}
	m.entries[string(name)], m.changed = e, true
	return e
}

func (m *memory[V]) see(e *remembered[V]) {
	if e.reading != m.reading {
		e.reading = m.reading
		m.seen++
	}
}

// end drops deleted entries, and reports whether anything differs from the last read.
func (m *memory[V]) end() (changed bool) {
	if m.seen < len(m.entries) {
		m.changed = true
		maps.DeleteFunc(m.entries, func(_ string, e *remembered[V]) bool { return e.reading != m.reading })
	}
	return m.changed
}

// dumpMemory contains the virtual servers of the last dump, keyed by the part of each message before the counters.
type dumpMemory struct{ memory[dumped] }

type dumped struct {
	server kernel.Server
	listed bool // not a firewall-mark server or one of an unknown protocol
}

func (m *dumpMemory) add(payload []byte) error {
	config := beforeCounters(payload)
	entry := m.entries[string(config)]
	if entry == nil {
		server, listed, err := decodeServer(payload)
		if err != nil {
			return err
		}
		entry = m.put(config, dumped{server, listed})
	}
	m.see(entry)
	return nil
}

func (m *dumpMemory) all() map[kernel.ServerKey]kernel.Server {
	all := make(map[kernel.ServerKey]kernel.Server, len(m.entries))
	for _, d := range m.entries {
		if d.value.listed {
			all[d.value.server.Key] = d.value.server
		}
	}
	return all
}

// procMemory contains the virtual servers of the last read of procFile, keyed by their lines.
type procMemory struct {
	memory[listed]
	lines *bufio.Reader
	seed  maphash.Seed

	// text contains the lines of the virtual server that is being read; stable contains its destination lines without counters.
	text, stable []byte
	// header is the length of the first line of text; 0 if text is empty.
	header int
}

type listed struct {
	hash   uint64
	parsed destinations // contains only this server; empty for a firewall-mark server
}

// chunk is how much of procFile one system call reads; more if one virtual server is larger. Most kernels do no other work of a program on
// this CPU during the call. 64 KB took 3.2 ms on the machine that docs/performance.md describes, and a change waited for several calls.
const chunk = 8 << 10

func newProcMemory() procMemory {
	return procMemory{memory: newMemory[listed](), lines: bufio.NewReaderSize(nil, chunk), seed: maphash.MakeSeed()}
}

func (m *procMemory) read(file io.Reader) (changed bool, err error) {
	m.lines.Reset(file)
	m.begin()
	m.header = 0
	for number := 1; ; number++ {
		line, err := m.lines.ReadSlice('\n')
		if errors.Is(err, io.EOF) && len(line) == 0 {
			break
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return false, err
		}
		if number == 1 && !bytes.HasPrefix(line, procTitle) {
			return false, errors.New("parse IPVS table: the version line is missing")
		}
		if number <= procTitleLines {
			continue
		}
		if err := m.line(line); err != nil {
			return false, err
		}
	}
	if err := m.flush(); err != nil {
		return false, err
	}
	return m.end(), nil
}

func (m *procMemory) line(line []byte) error {
	if bytes.HasPrefix(line, procDestination) {
		m.text = append(m.text, line...)
		m.stable = append(m.stable, withoutCounters(line)...)
		return nil
	}
	if err := m.flush(); err != nil {
		return err
	}
	m.text, m.stable, m.header = append(m.text[:0], line...), m.stable[:0], len(line)
	return nil
}

func (m *procMemory) flush() error {
	if m.header == 0 {
		return nil
	}
	name, hash := m.text[:m.header], maphash.Bytes(m.seed, m.stable)
	entry := m.entries[string(name)]
	if entry == nil || entry.value.hash != hash {
		parsed, err := parseServers(m.text)
		if err != nil {
			return err
		}
		for _, dests := range parsed {
			sortDestinations(dests)
		}
		entry = m.put(name, listed{hash, parsed})
	}
	m.see(entry)
	return nil
}

func (m *procMemory) all() destinations {
	all := make(destinations, len(m.entries))
	for _, l := range m.entries {
		maps.Copy(all, l.value.parsed)
	}
	return all
}

// withoutCounters removes the connection counts from a destination's line, unless its weight is 0. The agent needs the counts of a
// destination with weight 0 to detect when its last connection has ended.
func withoutCounters(line []byte) []byte {
	rest := bytes.TrimRight(line, " \n")
	for range 2 {
		rest = bytes.TrimRight(rest[:max(bytes.LastIndexByte(rest, ' '), 0)], " ")
	}
	if bytes.HasSuffix(rest, []byte(" 0")) {
		return line
	}
	return rest
}

// beforeCounters returns the part of a virtual server's message before its counters, which the kernel sends last.
func beforeCounters(payload []byte) []byte {
	const nested = 4 // the header of the enclosing attribute
	for at := genlHeaderLen + nested; at+nested <= len(payload); {
		length, typ := int(binary.NativeEndian.Uint16(payload[at:])), binary.NativeEndian.Uint16(payload[at+2:])
		if typ&^uint16(unix.NLA_F_NESTED) == svcStats {
			return payload[genlHeaderLen+nested : at]
		}
		if length < nested {
			break
		}
		at += (length + 3) &^ 3
	}
	return payload
}
