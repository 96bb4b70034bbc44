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

// Follower reads all virtual servers again and again, and decodes only what differs from its last reading. With 10,000 Services, decoding and
// sorting takes far longer than reading, and nothing has changed.
type Follower struct {
	backend *Backend
	dump    dumpMemory
	proc    procMemory
	// observed is the last result; nil if it was incomplete.
	observed map[kernel.ServerKey]kernel.ObservedServer
}

// Follow returns a Follower that has read nothing.
func (b *Backend) Follow() *Follower {
	return &Follower{backend: b, dump: dumpMemory{servers: map[string]*dumped{}}, proc: newProcMemory()}
}

// Read returns what Backend.Read does, except that only the connections of destinations with weight 0 are up to date. The result must not
// be changed.
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
	again, err := f.backend.Lookup(ctx, unsure)
	if err != nil {
		return nil, err
	}
	maps.Copy(observed, again)
	if f.observed = observed; len(unsure) > 0 {
		f.observed = nil
	}
	return observed, nil
}

// dumpMemory has the virtual servers of the last dump, by what the kernel says of them before their counters.
type dumpMemory struct {
	servers map[string]*dumped
	reading uint64
	seen    int
	changed bool
}

type dumped struct {
	server  kernel.Server
	listed  bool // it has no firewall mark
	reading uint64
}

func (m *dumpMemory) begin() { m.reading, m.seen, m.changed = m.reading+1, 0, false }

func (m *dumpMemory) add(payload []byte) error {
	config := beforeCounters(payload)
	entry := m.servers[string(config)]
	if entry == nil {
		server, listed, err := decodeServer(payload)
		if err != nil {
			return err
		}
		entry = &dumped{server: server, listed: listed}
		m.servers[string(config)] = entry
		m.changed = true
	}
	if entry.reading != m.reading {
		entry.reading = m.reading
		m.seen++
	}
	return nil
}

// end forgets what is gone, and reports whether anything differs from the last dump.
func (m *dumpMemory) end() (changed bool) {
	if m.seen < len(m.servers) {
		m.changed = true
		maps.DeleteFunc(m.servers, func(_ string, d *dumped) bool { return d.reading != m.reading })
	}
	return m.changed
}

func (m *dumpMemory) all() map[kernel.ServerKey]kernel.Server {
	all := make(map[kernel.ServerKey]kernel.Server, len(m.servers))
	for _, d := range m.servers {
		if d.listed {
			all[d.server.Key] = d.server
		}
	}
	return all
}

// procMemory has the virtual servers of the last reading of procFile, by their lines.
type procMemory struct {
	lines   *bufio.Reader
	seed    maphash.Seed
	servers map[string]*listed
	reading uint64
	seen    int
	changed bool

	// text are the lines of the virtual server that is being read, stable those without the counters that are not followed.
	text, stable []byte
	// header is the length of its first line; 0 if there is none.
	header int
}

// listed is a virtual server with its destinations.
type listed struct {
	hash    uint64
	parsed  destinations // of this server alone; none if it has a firewall mark
	reading uint64
}

func newProcMemory() procMemory {
	return procMemory{lines: bufio.NewReaderSize(nil, 64<<10), seed: maphash.MakeSeed(), servers: map[string]*listed{}}
}

// read reports whether anything differs from the last reading.
func (m *procMemory) read(file io.Reader) (changed bool, err error) {
	m.lines.Reset(file)
	m.reading, m.seen, m.changed, m.header = m.reading+1, 0, false, 0
	for number := 1; ; number++ {
		line, err := m.lines.ReadSlice('\n')
		if errors.Is(err, io.EOF) && len(line) == 0 {
			break
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return false, err
		}
		if number == 1 && !bytes.HasPrefix(line, procTitle) {
			return false, errors.New("parse IPVS table: it does not start with a version")
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
	if m.seen < len(m.servers) {
		m.changed = true
		maps.DeleteFunc(m.servers, func(_ string, l *listed) bool { return l.reading != m.reading })
	}
	return m.changed, nil
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

// flush ends a virtual server.
func (m *procMemory) flush() error {
	if m.header == 0 {
		return nil
	}
	name, hash := m.text[:m.header], maphash.Bytes(m.seed, m.stable)
	entry := m.servers[string(name)]
	if entry == nil || entry.hash != hash {
		parsed, err := parseServers(m.text)
		if err != nil {
			return err
		}
		for _, dests := range parsed {
			sortDestinations(dests)
		}
		entry = &listed{hash: hash, parsed: parsed}
		m.servers[string(name)] = entry
		m.changed = true
	}
	if entry.reading != m.reading {
		entry.reading = m.reading
		m.seen++
	}
	return nil
}

func (m *procMemory) all() destinations {
	all := make(destinations, len(m.servers))
	for _, l := range m.servers {
		maps.Copy(all, l.parsed)
	}
	return all
}

// withoutCounters leaves the connections out of a destination's line, unless its weight is 0: the agent waits for the last connection of
// such a destination.
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

// beforeCounters is the part of a virtual server's message before its counters, which the kernel sends last.
func beforeCounters(payload []byte) []byte {
	const nested = 4 // the header of the attribute that holds the others
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
