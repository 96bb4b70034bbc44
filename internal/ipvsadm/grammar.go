package ipvsadm

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/kube-ipvs/kube-ipvs/internal/inet"
	"github.com/kube-ipvs/kube-ipvs/internal/kernel"
)

// Request is a parsed command line.
type Request struct {
	Command Command
	Subject Subject
	// Service is the service to list, or nil for all services.
	Service *kernel.TableKey
	View    view
	// Numeric disables name lookups, Exact disables the abbreviation of numbers, and NoSort keeps the kernel's order.
	Numeric, Exact, NoSort bool
	// PersistentConn adds columns to the list of connections.
	PersistentConn bool
}

// Counters reports whether the command prints counters of packets and bytes.
func (r Request) Counters() bool {
	return r.Command == List && r.Subject == Table && (r.View == viewStats || r.View == viewRate)
}

// Subject is the kind of objects that List prints.
type Subject int

// The subjects.
const (
	Table Subject = iota
	Connections
	Timeouts
	Daemons
)

type view int

// The views. If a command line selects several, the first in this order after viewDefault wins.
const (
	viewDefault view = iota
	viewStats
	viewRate
	viewThresholds
	viewPersistentConn
	viewTunnel
)

// The exit statuses of ipvsadm.
const (
	StatusListFailed = 1
	StatusUsage      = 2

	statusFailure = 255
)

// Failure is the error for an invalid command line: the text for standard error, without the final newline, and the
// exit status.
type Failure struct {
	Text   string
	Status int
}

func failed(status int, format string, args ...any) *Failure {
	return &Failure{Text: fmt.Sprintf(format, args...), Status: status}
}

func usage(format string, args ...any) *Failure { return failed(StatusUsage, format, args...) }

const tryHelp = "Try `ipvsadm -h' or 'ipvsadm --help' for more information."

// Parse parses a command line without the program's name. It resolves host and service names with names.
func Parse(args []string, names Names) (Request, *Failure) {
	if len(args) == 0 {
		return Request{Command: List}, nil
	}
	p := parser{scanner: scanner{args: args}, names: names}
	first, _, ok, failure := p.next()
	if failure != nil || !ok || !first.isCommand {
		return Request{}, failed(statusFailure, "%s", tryHelp)
	}
	switch first.command {
	case writing:
		return Request{}, refusal(p.arg)
	case Help, Version:
		return Request{Command: first.command}, nil
	}
	p.command = first.command
	if failure := p.options(); failure != nil {
		return Request{}, failure
	}
	if failure := p.check(); failure != nil {
		return Request{}, failure
	}
	return p.request(), nil
}

func refusal(arg string) *Failure {
	return usage("%s is rejected: this ipvsadm is read-only. The agent owns the virtual servers of Services and would undo the change;\n"+
		"to change a Service, use the Kubernetes API. For virtual servers that are not Services, use the packaged ipvsadm.", arg)
}

// parser collects the parts of a command line.
type parser struct {
	scanner
	names   Names
	command Command
	seen    optionSet
	service kernel.TableKey
}

// options reads all options, up to the first invalid one.
func (p *parser) options() *Failure {
	for {
		w, value, ok, failure := p.next()
		if failure != nil {
			return failure
		}
		if !ok {
			return nil
		}
		if failure := p.option(w, value); failure != nil {
			return failure
		}
	}
}

func (p *parser) option(w word, value string) *Failure {
	if w.isCommand {
		return usage("invalid option `%s'", p.arg)
	}
	switch w.option {
	case optSort:
		return nil // the default
	case optIPv6:
		return p.ipv6()
	}
	if p.seen.has(w.option) {
		return usage("multiple '%s' options specified", optionNames[w.option])
	}
	p.seen |= setOf(w.option)
	return p.value(w, value)
}

// ipv6 applies only to a preceding mark.
func (p *parser) ipv6() *Failure {
	if p.service.Mark == 0 {
		return usage("-6 used before -f\n")
	}
	p.service.Family = inet.IPv6
	return nil
}

// value checks the value of an option. It ignores options that the read-only commands do not allow, because they are
// rejected anyway.
func (p *parser) value(w word, value string) *Failure {
	switch w.option {
	case optService:
		return p.serviceKey(w.tag, value)
	case optSyncID:
		if _, ok := parseInt(value, 0, 255); !ok {
			return usage("illegal syncid specified")
		}
	}
	return nil
}

var protocols = map[string]inet.Protocol{tagTCP: inet.TCP, tagUDP: inet.UDP, tagSCTP: inet.SCTP}

func (p *parser) serviceKey(tag, value string) *Failure {
	if tag == tagMark {
		mark, ok := parseInt(value, 1, 1<<32-1)
		if !ok {
			return usage("invalid fwmark value `%s' specified", value)
		}
		p.service = kernel.TableKey{Family: inet.IPv4, Mark: uint32(mark)}
		return nil
	}
	addr, ok := parseAddress(value, tag, p.names)
	if !ok {
		return usage("illegal virtual server address[:port] specified")
	}
	p.service = kernel.TableKey{Family: inet.FamilyOf(addr.Addr()), Protocol: protocols[tag], Addr: addr}
	return nil
}

// check checks the combination of all options, in ipvsadm's order.
func (p *parser) check() *Failure {
	if len(p.others) > 0 {
		return usage("unexpected argument %s", p.others[0])
	}
	for o := range optionCount {
		if p.seen.has(o) && !allowed[p.command].has(o) {
			return usage("Illegal '%s' option with the '%s' command", optionNames[o], p.command)
		}
	}
	return p.conflicts()
}

// subjects are mutually exclusive. The message names the first of a pair as the conflicting option.
var subjects = []option{optConnection, optService, optTimeout, optDaemon}

func (p *parser) conflicts() *Failure {
	for i, first := range subjects {
		for _, second := range subjects[i+1:] {
			if p.seen.has(first) && p.seen.has(second) {
				return usage("The option '%s' conflicts with the '%s' option in the 'list' command",
					optionNames[second], optionNames[first])
			}
		}
	}
	views := setOf(optStats, optRate, optThresholds)
	if !p.seen.has(optConnection) {
		views |= setOf(optPersistentConn)
	}
	if p.seen&setOf(optConnection, optTimeout, optDaemon) != 0 && p.seen&views != 0 {
		return usage("options conflicts in the list command")
	}
	return nil
}

func (p *parser) request() Request {
	r := Request{
		Command: p.command, View: p.view(), Subject: p.subject(),
		Numeric: p.seen.has(optNumeric), Exact: p.seen.has(optExact), NoSort: p.seen.has(optNoSort),
		PersistentConn: p.seen.has(optPersistentConn),
	}
	if p.seen.has(optService) {
		r.Service = &p.service
	}
	return r
}

func (p *parser) subject() Subject {
	switch {
	case p.seen.has(optConnection):
		return Connections
	case p.seen.has(optTimeout):
		return Timeouts
	case p.seen.has(optDaemon):
		return Daemons
	}
	return Table
}

func (p *parser) view() view {
	for i, o := range []option{optStats, optRate, optThresholds, optPersistentConn, optTunInfo} {
		if p.seen.has(o) {
			return viewStats + view(i)
		}
	}
	return viewDefault
}

// parseInt reads a decimal number by the rules of the C library. Spaces and a plus sign may precede the number, but nothing may follow it.
func parseInt(s string, low, high int64) (int64, bool) {
	n, err := strconv.ParseInt(strings.TrimLeft(s, " \t\n\v\f\r"), 10, 64)
	return n, err == nil && n >= low && n <= high
}
